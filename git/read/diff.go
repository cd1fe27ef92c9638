package read

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// Limits of a Diff.
const (
	maxChanges   = 3000
	maxRawDiff   = 8 << 20
	maxPatch     = 1 << 20
	maxLacking   = 500      // files without contents of a difference whose other files are counted
	gitlinkMode  = "160000" // mode of a submodule
	RenameLimit  = "1000"   // files that are compared to find renames
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
	// Lacking reports that the git directory does not have both contents, so that their lines are not counted.
	Lacking bool `json:"-"`
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
var statuses = map[byte]string{'A': "added", 'D': "deleted", 'M': "modified", 'R': "renamed", 'C': "copied",
	'T': "type-changed"}

// Diff compares two commits by their names. The patch is optional.
func (r Repo) Diff(ctx context.Context, base, head string, patch bool) (Diff, error) {
	d, err := r.Changes(ctx, base, head, maxChanges)
	if patch && err == nil {
		var out []byte
		out, d.PatchTruncated, err = Output(r.diff(ctx, d, "--patch"), maxPatch)
		d.Patch = string(out)
	}
	return d, err
}

// Changes lists up to limit paths that differ between two commits or trees.
func (r Repo) Changes(ctx context.Context, base, head string, limit int) (Diff, error) {
	return r.changes(ctx, base, head, limit)
}

// PathChanges lists up to limit paths that differ between two commits or trees. A renamed file is a removed and an
// added one.
func (r Repo) PathChanges(ctx context.Context, base, head string, limit int) (Diff, error) {
	return r.changes(ctx, base, head, limit, "--no-renames")
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
	list, cut, err := r.listChanges(ctx, d, append(args, "--raw", "--numstat"), nil)
	if gitcmd.Exited(err, 128) && ctx.Err() == nil {
		list, cut, err = r.changesWithout(ctx, d)
	}
	if err != nil {
		return Diff{}, err
	}
	d.Changes = list
	if d.Truncated = cut; len(d.Changes) > limit {
		d.Changes, d.Truncated = d.Changes[:limit], true
	}
	return d, nil
}

// listChanges lists the changes of a difference, except those of the paths in the list without.
func (r Repo) listChanges(ctx context.Context, d Diff, args, without []string) (list []Change, cut bool, err error) {
	cmd := r.diff(ctx, d, append(args, "-z", "--no-abbrev")...)
	if len(without) > 0 {
		cmd.Args = append(cmd.Args, ":/")
	}
	for _, path := range without {
		cmd.Args = append(cmd.Args, ":(top,exclude,literal)"+path)
	}
	out, cut, err := Output(cmd, maxRawDiff)
	if err != nil {
		return nil, false, err
	}
	list, err = ParseDiff(string(out), cut)
	return list, cut, err
}

// changesWithout is for a git directory that has the trees of a difference, but not the contents of all changed files.
// It finds no renamed files, and does not count the lines of files whose contents are missing.
func (r Repo) changesWithout(ctx context.Context, d Diff) (list []Change, cut bool, err error) {
	all, cut, err := r.listChanges(ctx, d, []string{"--raw", "--no-renames"}, nil)
	if err != nil {
		return nil, false, err
	}
	var lacking []string
	err = r.use(ctx, func(b *batch) (bool, error) {
		lacking = nil
		for i := range all {
			c := &all[i]
			c.Lacking = false
			for mode, id := range map[string]string{c.OldMode: c.OldHash, c.NewMode: c.NewHash} {
				if mode == gitlinkMode || strings.Trim(id, "0") == "" {
					continue
				}
				if _, err := b.info(id); errors.Is(err, ErrNotFound) {
					c.Lacking = true
				} else if err != nil {
					return false, err
				}
			}
			if c.Lacking {
				lacking = append(lacking, c.Path)
			}
		}
		return false, nil
	})
	if err != nil || cut || len(lacking) > maxLacking { // too many to be arguments
		return all, cut, err
	}
	counted, _, err := r.listChanges(ctx, d, []string{"--raw", "--numstat", "--no-renames"}, lacking)
	if err != nil {
		return nil, false, err
	}
	of := make(map[string]Change, len(counted))
	for _, c := range counted {
		of[c.Path] = c
	}
	for i, c := range all {
		if with, ok := of[c.Path]; ok {
			all[i] = with
		}
	}
	return all, false, nil
}

// diff returns a git diff-tree of the two commits.
func (r Repo) diff(ctx context.Context, d Diff, args ...string) *exec.Cmd {
	return r.Command(ctx,
		append(append([]string{"diff-tree", "-r", "--find-renames", "-l" + RenameLimit, noExternals, noConversion,
			"--no-color"}, args...), "--end-of-options", d.Base, d.Head, "--")...)
}

// ParseDiff parses the output of git diff-tree --raw --numstat -z: first all raw records, then all counts in the same
// order. If the output was cut off, the last record may be incomplete, and counts may be missing.
func ParseDiff(text string, cut bool) ([]Change, error) {
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
