package cli

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// kindsLeft are the reasons for which a path is missing, in the order in which receipts print them, with the words for
// them.
var kindsLeft = []struct{ why, words string }{
	{"filter", "refused by a required filter"}, {"worktree", "linked worktree"}, {"secret", "secret"},
	{"size", "too large"}, {"excluded", "excluded"},
	{"type", "no file or link"}, {"unread", "moved and never read"}, {"submodule", "in a submodule"},
	{"place", "without a place"}, {"ignored", "ignored"},
}

// PrintReceipt prints on stderr, in one line, what is not as it was. verb is "carried" or "restored". It prints nothing
// if r is nil, or with --json or --quiet.
func PrintReceipt(a *App, verb string, r *control.Receipt) {
	if r == nil || a.JSON || a.Quiet {
		return
	}
	fmt.Fprintf(a.Stderr, "artifactfs: not %s: %s\n", verb, OneLine(receiptText(r)))
}

// receiptText lists what is in a receipt: for each reason the number of paths, and at most three of them.
func receiptText(r *control.Receipt) string {
	var parts []string
	add := func(text string, names []string) {
		parts = append(parts, fmt.Sprintf("%s (%s)", text, firstOf(names)))
	}
	for _, kind := range kindsLeft {
		var names []string
		for _, p := range r.Paths {
			if p.Why == kind.why {
				names = append(names, p.Path)
			}
		}
		switch n := int64(len(names)); {
		case n == 0:
		case kind.why == "secret" || kind.why == "worktree":
			add(Plural(n, kind.words), names)
		default:
			add(Count(n)+" "+kind.words, names)
		}
	}
	if r.Others > 0 {
		parts = append(parts, Count(r.Others)+" more")
	}
	if n := int64(len(r.Submodules)); n > 0 {
		add(Plural(n, "submodule"), r.Submodules)
	}
	return strings.Join(parts, ", ")
}
