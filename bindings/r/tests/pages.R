# The help pages name every function that there is, with the arguments that it has.

package <- system.file(package = "fanwise")
missing <- tools::undoc("fanwise", lib.loc = dirname(package))
wrong <- tools::codoc("fanwise", lib.loc = dirname(package))
print(missing)
print(wrong)
stopifnot(length(unlist(missing)) == 0, length(wrong) == 0)
