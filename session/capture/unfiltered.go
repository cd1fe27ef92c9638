package capture

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Git refuses to add a file if its filter is required (filter.DRIVER.required) and fails. The filter may be there to
// encrypt the file, so a checkpoint does not contain the raw contents of such a file either. The file is left out, and
// every later checkpoint converts it again until the filter succeeds.

// required reports whether the filter of the file at path is required.
func (l *cleaning) required(ctx context.Context, path string) (bool, error) {
	const attribute = "filter"
	out, err := l.c.git(ctx, l.run(), "check-attr", "-z", attribute, "--", relative(path, l.top))
	if err != nil {
		return false, err
	}
	fields := strings.Split(string(out), "\x00") // path, attribute and value, each with a zero byte
	if len(fields) != 4 || fields[1] != attribute {
		return false, fmt.Errorf("read output of git check-attr: invalid line %.80q", out)
	}
	out, err = l.c.git(ctx, gitRun{quiet: true}, "config", "--type=bool", "--get", "filter."+fields[2]+".required")
	return string(out) == "true\n", err
}

// withhold leaves out a file that a required filter could not convert. The tree keeps the blob that the path had
// before: otherwise the checkpoint would show a tracked file as removed.
func (e *edit) withhold(ctx context.Context, s *source) error {
	e.left.add(LeftOut{Path: s.path, Why: session.Unfiltered, Size: s.size})
	was := object.TreeEntry{Mode: s.mode, ID: s.before}
	if was.ID.IsZero() {
		var err error
		if was, err = e.c.lookup(ctx, e.previous(), s.path); err != nil {
			return err
		}
	}
	if was.Mode.IsBlob() {
		return e.trees.set(ctx, s.path, was.Mode, was.ID)
	}
	if now, _, err := e.trees.get(ctx, s.path); err != nil || now == 0 {
		return err
	}
	return e.trees.remove(ctx, s.path)
}

// previous returns the tree of the previous checkpoint, with the files of linked worktrees if they are known, or the
// base tree if there is no checkpoint.
func (e *edit) previous() object.ID {
	if !e.c.mem.tree.IsZero() {
		return e.c.mem.tree
	}
	if last, ok := e.c.Last(); ok {
		return last.Tree
	}
	return e.v.from
}

// filterAgain adds to e.cleaned the files that the previous checkpoint has left out because a required filter had
// failed. They have not changed since then. If a program changes one now, the next checkpoint reads it once more.
func (e *edit) filterAgain(ctx context.Context) error {
	for _, path := range slices.Sorted(maps.Keys(e.left.unfiltered)) {
		n, err := e.c.o.Tree.Resolve(ctx, path)
		if err != nil {
			e.left.delete(path) // removed after the freeze, or in the removal of which the previous checkpoint was made
			continue
		}
		a, err := e.c.o.Tree.Attr(ctx, n)
		if err != nil {
			return err
		}
		if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
			e.left.delete(path)
			continue
		}
		f := &worktree.FrozenEntry{Path: path, Kind: worktree.FrozenContent, Mode: object.ModeFile, Size: a.Size}
		if a.Mode&0o100 != 0 {
			f.Mode = object.ModeExec
		}
		reason, err := e.reasonToLeaveOut(ctx, f)
		if err != nil {
			return err
		}
		if reason != "" {
			if err := e.leaveOut(ctx, f, reason); err != nil {
				return err
			}
			continue
		}
		e.cleaned = append(e.cleaned, source{path: path, size: a.Size, content: readerAt{e.c.o.Tree, ctx, n}, mode: f.Mode})
	}
	return e.v.failure
}
