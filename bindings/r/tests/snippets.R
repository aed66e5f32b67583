# The snippets of docs/r.md, in order, in one session.

library(fanwise)

page <- readLines(file.path("..", "..", "..", "docs", "r.md"))
begin <- which(page == "```r")
stopifnot(length(begin) > 0)
for (at in begin) {
  end <- which(page == "```")
  end <- min(end[end > at])
  eval(parse(text = page[(at + 1):(end - 1)]), globalenv())
}
