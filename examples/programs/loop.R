# A simulator in R that is started once: od.command(["Rscript", "loop.R"], persistent=True)
# It reads lines such as {"mu": 1.5, "sigma": 2.0, "seed": 1234} and answers each with a line: 20 normal numbers.

simulate <- function(mu, sigma) rnorm(20, mu, sigma)

# The request holds numbers only, so that no package for JSON is needed.
numbers <- function(line) {
  pairs <- regmatches(line, gregexpr('"[^"]*" *: *[-+.0-9eE]+', line))[[1]]
  setNames(as.list(as.numeric(sub('^"[^"]*" *: *', "", pairs))), sub('^"([^"]*)".*$', "\\1", pairs))
}

input <- file("stdin", "r")
while (length(line <- readLines(input, n = 1)) > 0) {
  given <- numbers(line)
  set.seed(given$seed)
  answer <- tryCatch(
    paste0("[", paste(format(simulate(given$mu, given$sigma), digits = 17), collapse = ", "), "]"),
    error = function(e) paste0('{"error": "', gsub('["\\\\\n]', " ", conditionMessage(e)), '"}')
  )
  # Only answers go to standard output; message() writes to standard error.
  cat(answer, "\n", sep = "")
  flush(stdout())
}
