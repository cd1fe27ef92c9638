package read

import (
	"context"
	"fmt"
	"strings"
)

// maxPathBytes is the maximum size in bytes of the output of git for Paths.
const maxPathBytes = 64 << 20

// Paths returns the paths whose files differ between two trees or commits, which are named by their ids. A moved file
// counts at both places.
func (r Repo) Paths(ctx context.Context, from, to string) ([]string, error) {
	out, err := r.Output(ctx, maxPathBytes, "diff-tree", "-r", "-z", "--name-only", "--no-renames",
		"--ignore-submodules=none", from, to)
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

// Output runs a git command and returns its output, which must not have more bytes than limit.
func (r Repo) Output(ctx context.Context, limit int64, args ...string) ([]byte, error) {
	out, cut, err := Output(r.Command(ctx, args...), limit)
	if cut {
		err = fmt.Errorf("read output of git %s: it has more than %d bytes", args[0], limit)
	}
	return out, err
}
