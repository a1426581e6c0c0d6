# Of the output of a make goal: where it failed first. One line: the place, the test, the error.
#
# pytest shows each failed test below a line with its name, and names all of them at the end. After
# the line "once more", only the second try counts. Other programs (ruff, mypy, a compiler) begin a
# line with file:line, and make ends with "***".

function place_of(line) {
	sub(/^ *(--> )?/, "", line)
	match(line, /^[^ :]+:[0-9]+/)
	return substr(line, 1, RLENGTH)
}

function short(text) {
	return length(text) > 300 ? substr(text, 1, 297) "..." : text
}

/^make: tests failed; once more/ {
	test = block = last = any_place = any_error = ""
	delete place
	delete error
	delete names
}

expected { reason = substr($0, match($0, /[^ ]/)); expected = 0 }

/^_+ .* _+$/ {
	block = $0
	gsub(/^_+ (ERROR at (setup|teardown) of )?| _+$/, "", block)
	names[block]
}

/^(FAILED|ERROR) / && !test {
	test = substr($0, index($0, " ") + 1)
	expected = test !~ /::/ && test !~ / - /
}

/^E   +[^ ]/ {
	if (!(block in error)) error[block] = substr($0, match($0, /[^E ]/))
}

/^ *(--> )?[A-Za-z0-9_.\/-]+\.[a-z]+:[0-9]+:/ {
	if (!(block in place)) place[block] = place_of($0)
	if (!any_error) any_error = /-->/ ? place_of($0) ": " last : $0
}

/^make(\[[0-9]+\])?: \*\*\*/ && !made { made = $0 }

!/^make/ && NF { last = $0 }

END {
	if (test) {
		for (name in names)
			if (length(name) > length(best) && index(test, "::" name)) best = name
		if (best) {
			test = substr(test, 1, index(test, "::" best) + 1 + length(best))
			where = best in place ? place[best] ": " : ""
			reason = error[best]
		}
		print short(where test (reason ? ": " reason : ""))
	} else
		print short(any_error ? any_error : made ? made ": " last : last)
}
