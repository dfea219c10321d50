# A simulator in Julia that is started once: od.command(["julia", "loop.jl"], persistent=True)
# It reads lines such as {"mu": 1.5, "sigma": 2.0, "seed": 1234} and answers each with a line: 20 normal numbers.

using Random

simulate(mu, sigma) = mu .+ sigma .* randn(20)

# The request holds numbers only, so that no package for JSON is needed.
function numbers(line)
    pairs = eachmatch(r"\"([^\"]*)\" *: *([-+.0-9eE]+)", line)
    Dict(String(pair[1]) => parse(Float64, pair[2]) for pair in pairs)
end

for line in eachline(stdin)
    given = numbers(line)
    Random.seed!(Int(given["seed"]))
    answer = try
        "[" * join(simulate(given["mu"], given["sigma"]), ", ") * "]"
    catch fault
        "{\"error\": \"" * replace(sprint(showerror, fault), r"[\"\\\n]" => " ") * "\"}"
    end
    # Only answers go to standard output; println(stderr, ...) is for everything else.
    println(answer)
    flush(stdout)
end
