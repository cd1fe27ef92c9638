package gitread

import (
	"context"
	"fmt"
	"strings"
)

// maxPathBytes is the maximum size in bytes of the output of git for Paths.
const maxPathBytes = 64 << 20

// Paths returns the paths whose files differ between two trees or commits, which are named by their ids. A moved file counts at both
// places.
func (r Repo) Paths(ctx context.Context, from, to string) ([]string, error) {
	out, cut, err := output(r.command(ctx, "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none", from, to),
		maxPathBytes)
	if err != nil {
		return nil, err
	}
	if cut {
		return nil, fmt.Errorf("list paths that differ between %s and %s: they have more than %d bytes", from, to, maxPathBytes)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
