package promisor

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// change is one line of git's raw diff format (diff-format(5)): a path with its entries before and after the change.
// The line of a merge has one entry for each parent.
type change struct {
	// status is the letter of git's raw format: A, C, D, M, R or T. For a merge it has one letter for each parent.
	status string
	path   string
	before []side
	after  side
}

// side is the mode and the id of an entry. The id is zero if the entry does not exist.
type side struct {
	mode string
	id   object.ID
}

// isBlob reports whether the entry is a file or a symbolic link. It returns false for a submodule, and for an entry
// that does not exist.
func (s side) isBlob() bool {
	return !s.id.IsZero() && (strings.HasPrefix(s.mode, "100") || s.mode == "120000")
}

// sides returns the entry after the change, followed by the entries before it.
func (c change) sides() []side { return append([]side{c.after}, c.before...) }

// commitMark is the first byte of the text that --format prints. It distinguishes the lines of commits from those of
// changes.
const commitMark = "\x01"

// logFormat makes git log print the id of each commit before its changes.
const logFormat = "--format=%x01%H"

// readChanges reads the output of `git log --raw -z` with logFormat, or of `git diff-tree -z`. It calls the function
// commit for each commit and the function each for each change. If one of the functions returns an error, readChanges
// returns this error.
func readChanges(r *bufio.Reader, commit func(id string) error, each func(change) error) error {
	for {
		token, err := r.ReadString(0)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		token = strings.Trim(token, "\n\x00")
		if id, ok := strings.CutPrefix(token, commitMark); ok {
			if err := commit(strings.TrimSpace(id)); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(token, ":") {
			continue // the token is empty, or is the id of a commit as diff-tree prints it
		}
		// A rename or a copy has a second path, the new name, which is read below and ignored. The ids are in the token that
		// precedes the paths.
		path, err := r.ReadString(0)
		if err != nil {
			return nil
		}
		c, ok := parseChange(token)
		if !ok {
			continue
		}
		if c.path = strings.TrimSuffix(path, "\x00"); strings.HasPrefix(c.status, "R") || strings.HasPrefix(c.status, "C") {
			if _, err = r.ReadString(0); err != nil {
				return nil
			}
		}
		if err := each(c); err != nil {
			return err
		}
	}
}

// parseChange parses a token of the form ":mode mode id id status". For a merge there is one more colon, mode and id
// for each further parent. parseChange returns false if the token is malformed.
func parseChange(token string) (change, bool) {
	n := len(token) - len(strings.TrimLeft(token, ":"))
	fields := strings.Fields(token[n:])
	if len(fields) != 2*(n+1)+1 {
		return change{}, false
	}
	sides := make([]side, n+1)
	for i := range sides {
		id, err := object.ParseID(fields[n+1+i])
		if err != nil {
			return change{}, false
		}
		// An id of zeros stands for an entry that does not exist.
		if strings.Trim(fields[n+1+i], "0") == "" {
			id = object.ID{}
		}
		sides[i] = side{fields[i], id}
	}
	return change{status: fields[len(fields)-1], before: sides[:n], after: sides[n]}, true
}

// readTree reads the output of `git ls-tree -r -z` and calls the function each for every entry.
func readTree(r *bufio.Reader, each func(path string, s side) error) error {
	for {
		line, err := r.ReadString(0)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		head, path, _ := strings.Cut(strings.TrimSuffix(line, "\x00"), "\t")
		fields := strings.Fields(head)
		if len(fields) < 3 {
			continue
		}
		if id, err := object.ParseID(fields[2]); err == nil {
			if err := each(path, side{fields[0], id}); err != nil {
				return err
			}
		}
	}
}
