#!/bin/bash
# checks.sh: the checks of test scripts, each of which prints a line and is counted. To be sourced.
passed=0 failed=0

ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }

# context: what a failed check shows besides; a script may have its own
context() { :; }

# check WHAT CONDITION
check() { if eval "$2"; then ok "$1"; else bad "$1: $2 $(context)"; fi; }

# is WHAT EXPECTED FOUND
is() { if [ "$2" = "$3" ]; then ok "$1: $3"; else bad "$1: expected \"$2\", found \"$3\" $(context)"; fi; }

# verify WHAT COMMAND...: succeeds; what it prints last (a measured error, a reason) is shown
verify() {
    if "${@:2}" >said 2>&1; then ok "$1 $(tail -n 1 said)"; else bad "$1 (${*:2}): $(tail -n 3 said)"; fi
}

# says WORDS FILE: each of the words, between ", ", is in the file
says() {
    while read -r word; do grep -qaF -- "$word" "$2" || return 1; done <<<"${1//, /$'\n'}"
}

# same_weights FOLDER FOLDER: the checkpoints have the same weights and the same state of the optimizer
same_weights() { for file in model optimizer; do cmp {"$1","$2"}/$file.safetensors || return 1; done; }

# finish: the last line, and the exit status
finish() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
}
