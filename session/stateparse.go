package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
)

// parseHead parses the entry stateHead of a State. It returns the full name of the branch and the commit of HEAD, as
// far as the entry has them.
func parseHead(f object.Format, text string) (branch string, head object.ID, err error) {
	rest := text
	if after, ok := strings.CutPrefix(text, "ref: "); ok {
		branch, rest, ok = strings.Cut(after, "\n")
		if !ok || branch == "HEAD" || !refname.Valid(branch) {
			return "", object.ID{}, fmt.Errorf("%w: invalid HEAD %.80q", errState, text)
		}
	}
	if rest == "" {
		return branch, object.ID{}, nil
	}
	line, ok := strings.CutSuffix(rest, "\n")
	if head, err = object.ParseIDOf(f, line); err != nil || !ok {
		return "", object.ID{}, fmt.Errorf("%w: invalid HEAD %.80q", errState, text)
	}
	return branch, head, nil
}

// parseSpecial parses the entry stateSpecial of a State, and returns the index entries in it. It returns an error if an
// entry other than an intent to add has no ID.
func parseSpecial(f object.Format, text []byte) ([]IndexEntry, error) {
	var list []IndexEntry
	for line := range bytes.Lines(text) {
		var e specialEntry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%w: %w", errState, err)
		}
		x := IndexEntry{Path: string(e.Path), Mode: object.Mode(e.Mode), Stage: e.Stage, AssumeValid: e.AssumeValid,
			SkipWorktree: e.SkipWorktree, IntentToAdd: e.IntentToAdd}
		if e.ID != "" {
			id, err := object.ParseIDOf(f, e.ID)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errState, err)
			}
			x.ID = id
		}
		modes := []object.Mode{object.ModeFile, object.ModeExec, object.ModeSymlink, object.ModeGitlink}
		longest := object.MaxNameLen
		if x.SkipWorktree { // such an entry may have a name that no directory can show
			longest = len(x.Path)
		}
		if e.Stage > 3 || !validPath(x.Path, longest) || !slices.Contains(modes, x.Mode) || x.ID.IsZero() != x.IntentToAdd {
			return nil, fmt.Errorf("%w: invalid index entry %.80q", errState, line)
		}
		list = append(list, x)
	}
	return list, nil
}

// validPath reports whether a path can be in an index: each of its components is a valid file name with at most longest
// bytes.
func validPath(path string, longest int) bool {
	for part := range strings.SplitSeq(path, "/") {
		if len(part) > longest || !validFileName(part) {
			return false
		}
	}
	return true
}

// parseRefs parses the entry stateRefs or stateRemote of a State.
func parseRefs(f object.Format, text []byte) ([]packedrefs.Ref, error) {
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errState, err)
	}
	for _, r := range refs {
		if r.ID.Format() != f || !refname.Valid(r.Name) || !r.Peeled.IsZero() {
			return nil, fmt.Errorf("%w: invalid ref %.80q", errState, r.Name)
		}
	}
	return refs, nil
}

// parseStashes parses the entry stateStashes of a State.
func parseStashes(f object.Format, text string) ([]Stash, error) {
	var list []Stash
	for line := range strings.Lines(text) {
		name, message, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		id, err := object.ParseIDOf(f, name)
		if err != nil || !ok {
			return nil, fmt.Errorf("%w: invalid stash %.80q", errState, line)
		}
		list = append(list, Stash{Commit: id, Message: message})
	}
	return list, nil
}

// parseDirs parses the entry stateDirs of a State, and returns the permissions of directories by path.
func parseDirs(text string) (map[string]uint32, error) {
	dirs := map[string]uint32{}
	for text != "" {
		var line string
		var ok bool
		if line, text, ok = strings.Cut(text, "\x00"); !ok {
			return nil, fmt.Errorf("%w: entry %.80q does not end with a NUL byte", errState, line)
		}
		mode, path, _ := strings.Cut(line, " ")
		perm, err := strconv.ParseUint(mode, 8, 12)
		if err != nil || !validPath(path, object.MaxNameLen) {
			return nil, fmt.Errorf("%w: invalid directory entry %.80q", errState, line)
		}
		dirs[path] = uint32(perm)
	}
	return dirs, nil
}

// parseLeft parses the left-out paths in the message of a State's commit, one JSON object on each line. It ignores
// invalid lines, because the paths are only displayed.
func parseLeft(commit []byte) []LeftOut {
	_, message, _ := bytes.Cut(commit, []byte("\n\n"))
	var list []LeftOut
	for line := range bytes.Lines(message) {
		var l LeftOut
		if len(line) > 0 && line[0] == '{' && json.Unmarshal(line, &l) == nil && l.Path != "" {
			list = append(list, l)
		}
	}
	return list
}
