package promisor

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// change is one line of git's raw diff format (diff-format(5)): a path, and its entries before and
// after. A merge has several entries before.
type change struct {
	// status is the letter of git's raw format: A, C, D, M, R, T, or one for each parent of a
	// merge.
	status string
	path   string
	before []side
	after  side
}

// side is a mode with an id; the id of an absent entry is zero.
type side struct {
	mode string
	id   object.ID
}

// isBlob reports whether there is a file or a link, which a gitlink is not.
func (s side) isBlob() bool {
	return !s.id.IsZero() && (strings.HasPrefix(s.mode, "100") || s.mode == "120000")
}

// sides returns the entries after and before the change.
func (c change) sides() []side { return append([]side{c.after}, c.before...) }

// commitMark begins the output of --format, which distinguishes it from changes.
const commitMark = "\x01"

// logFormat makes git log name each commit in front of its changes.
const logFormat = "--format=%x01%H"

// readChanges reads the output of `git log --raw -z` with logFormat, or of `git diff-tree -z`.
// Either function may end it with an error.
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
			continue // the commit's id again, which diff-tree prints, or nothing
		}
		// A rename or a copy has a second path, the new one. It is skipped: the ids are on the
		// first line.
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

// parseChange reads ":mode mode id id status", with as many more colons, modes and ids as a merge
// has more parents.
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
		// A null id stands for an absent entry.
		if strings.Trim(fields[n+1+i], "0") == "" {
			id = object.ID{}
		}
		sides[i] = side{fields[i], id}
	}
	return change{status: fields[len(fields)-1], before: sides[:n], after: sides[n]}, true
}

// readTree reads the output of `git ls-tree -r -z`.
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
