package gitread

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Limits of a Diff.
const (
	maxChanges   = 3000
	maxRawDiff   = 8 << 20
	maxPatch     = 1 << 20
	renameLimit  = "1000" // files that are compared to find renames
	noExternals  = "--no-ext-diff"
	noConversion = "--no-textconv"
)

// Change is a path that differs between two commits.
type Change struct {
	Path      string `json:"path"`
	OldPath   string `json:"old_path,omitempty"` // of a renamed or copied file
	Status    string `json:"status"`             // added, deleted, modified, renamed, copied, type-changed
	OldMode   string `json:"old_mode"`
	NewMode   string `json:"new_mode"`
	OldHash   string `json:"old_hash"`
	NewHash   string `json:"new_hash"`
	Additions int    `json:"additions"` // lines; 0 for binary files
	Deletions int    `json:"deletions"`
	Binary    bool   `json:"binary"`
}

// Diff is the difference between two commits.
type Diff struct {
	Base      string   `json:"base"` // id
	Head      string   `json:"head"`
	Changes   []Change `json:"changes"`
	Truncated bool     `json:"truncated"` // there are more changes
	Patch     string   `json:"patch,omitempty"`
	// PatchTruncated reports that Patch is only the beginning of the patch.
	PatchTruncated bool `json:"patch_truncated,omitempty"`
}

// statuses are the names of the letters in the output of git.
var statuses = map[byte]string{'A': "added", 'D': "deleted", 'M': "modified", 'R': "renamed", 'C': "copied", 'T': "type-changed"}

// Diff compares two commits by their names. The patch is optional.
func (r Repo) Diff(ctx context.Context, base, head string, patch bool) (Diff, error) {
	d, err := r.Changes(ctx, base, head, maxChanges)
	if patch && err == nil {
		var out []byte
		out, d.PatchTruncated, err = output(r.diff(ctx, d, "--patch"), maxPatch)
		d.Patch = string(out)
	}
	return d, err
}

// Changes lists up to limit paths that differ between two commits or trees.
func (r Repo) Changes(ctx context.Context, base, head string, limit int) (Diff, error) {
	return r.changes(ctx, base, head, limit)
}

// changes is like Changes, with further arguments for git.
func (r Repo) changes(ctx context.Context, base, head string, limit int, args ...string) (d Diff, err error) {
	err = r.use(ctx, func(b *batch) (_ bool, err error) {
		d.Base, err = r.resolve(b, base)
		if err == nil {
			d.Head, err = r.resolve(b, head)
		}
		for _, id := range []string{d.Base, d.Head} {
			if err == nil {
				_, err = b.info(id + "^{tree}")
			}
		}
		return false, err
	})
	if err != nil {
		return Diff{}, err
	}
	out, cut, err := output(r.diff(ctx, d, append(args, "--raw", "--numstat", "-z", "--no-abbrev")...), maxRawDiff)
	if err != nil {
		return Diff{}, err
	}
	if d.Changes, err = parseDiff(string(out), cut); err != nil {
		return Diff{}, err
	}
	if d.Truncated = cut; len(d.Changes) > limit {
		d.Changes, d.Truncated = d.Changes[:limit], true
	}
	return d, nil
}

// diff returns a git diff-tree of the two commits.
func (r Repo) diff(ctx context.Context, d Diff, args ...string) *exec.Cmd {
	return r.command(ctx, append(append([]string{"diff-tree", "-r", "--find-renames", "-l" + renameLimit, noExternals, noConversion,
		"--no-color"}, args...), "--end-of-options", d.Base, d.Head, "--")...)
}

// parseDiff parses the output of git diff-tree --raw --numstat -z: first all raw records, then all counts in the same order. If the
// output was cut off, the last record may be incomplete, and counts may be missing.
func parseDiff(text string, cut bool) ([]Change, error) {
	list := []Change{}
	fields := strings.Split(text, "\x00")
	next := func() (string, bool) {
		if len(fields) <= 1 { // what follows the last NUL is empty or incomplete
			return "", false
		}
		f := fields[0]
		fields = fields[1:]
		return f, true
	}
	for len(fields) > 1 && strings.HasPrefix(fields[0], ":") {
		head, _ := next()
		f := strings.Fields(head[1:])
		if len(f) != 5 || statuses[f[4][0]] == "" {
			return nil, fmt.Errorf("parse difference: invalid record %.80q", head)
		}
		c := Change{OldMode: f[0], NewMode: f[1], OldHash: f[2], NewHash: f[3], Status: statuses[f[4][0]]}
		path, ok := next()
		if c.Path = path; ok && (f[4][0] == 'R' || f[4][0] == 'C') {
			c.OldPath = path
			c.Path, ok = next()
		}
		if !ok {
			break
		}
		list = append(list, c)
	}
	for i := range list {
		stat, ok := next()
		if !ok {
			break
		}
		f := strings.SplitN(stat, "\t", 3)
		if len(f) != 3 {
			return nil, fmt.Errorf("parse difference: invalid counts %.80q", stat)
		}
		c := &list[i]
		if c.Binary = f[0] == "-"; !c.Binary {
			c.Additions, _ = strconv.Atoi(f[0]) // git writes numbers
			c.Deletions, _ = strconv.Atoi(f[1])
		}
		if f[2] == "" { // the two paths of a renamed file follow
			next()
			next()
		}
	}
	if !cut && len(fields) > 1 {
		return nil, fmt.Errorf("parse difference: unexpected %.80q", fields[0])
	}
	return list, nil
}
