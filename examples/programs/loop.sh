#!/bin/sh
# A simulator around other programs that is started once: od.command(["sh", "loop.sh"], persistent=True)
# It reads lines such as {"mu": 1.5, "sigma": 2.0, "seed": 1234} and answers each with a line: 20 normal numbers.

# The number behind "name": in the request, which holds numbers only.
number() {
    printf '%s\n' "$line" | sed -n "s/.*\"$1\": *\([-+.0-9eE]*\).*/\1/p"
}

while IFS= read -r line; do
    # Only answers go to standard output, one line each.
    awk -v mu="$(number mu)" -v sigma="$(number sigma)" -v seed="$(number seed)" 'BEGIN {
        srand(seed); rand()
        for (i = 0; i < 20; i++) {
            normal = sqrt(-2 * log(1 - rand())) * cos(6.283185307179586 * rand())
            printf "%s%.17g", i ? ", " : "[", mu + sigma * normal
        }
        print "]"
    }' || echo '{"error": "awk failed"}'
done
