/* A simulator in C that is started once: cc -O2 -o loop loop.c -lm, then od.command(["./loop"], persistent=True)
   It reads lines such as {"mu": 1.5, "sigma": 2.0, "seed": 1234} and answers each with a line: 20 normal numbers. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

/* SplitMix64: a small generator that a seed fixes on every machine. */
static double uniform(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (((z ^ (z >> 31)) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(double mu, double sigma) {
    double radius = sqrt(-2.0 * log(uniform()));
    return mu + sigma * radius * cos(6.283185307179586 * uniform());
}

/* The number behind "name": in the request, which holds numbers only. */
static int number(const char *line, const char *name, double *value) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *found = strstr(line, key);
    if (found == NULL) return 0;
    *value = strtod(found + strlen(key), NULL);
    return 1;
}

int main(void) {
    char line[65536];
    while (fgets(line, sizeof line, stdin)) {
        double mu, sigma, seed;
        if (!number(line, "mu", &mu) || !number(line, "sigma", &sigma) || !number(line, "seed", &seed)) {
            printf("{\"error\": \"mu, sigma or seed is missing\"}\n");
        } else {
            state = (uint64_t)seed;
            for (int i = 0; i < 20; i++) printf("%s%.17g", i ? ", " : "[", normal(mu, sigma));
            printf("]\n");
        }
        /* Only answers go to standard output, one line each; fprintf(stderr, ...) is for everything else. */
        fflush(stdout);
    }
    return 0;
}
