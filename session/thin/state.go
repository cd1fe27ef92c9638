package thin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// state describes the container that the session remote had when this host last read or pushed it. It is only a cache,
// because the container can be fetched again.
type state struct {
	// Tip is the commit of the newest container that the session remote is known to have.
	Tip          object.ID
	Manifest     manifest  // manifest of the container Tip
	Next         object.ID // commit of a container whose push got no answer; zero if there is none
	NextManifest manifest  // manifest of the container Next
}

// Names of files in the directory of a Remote.
const (
	stateName   = "container.json"
	rewriteName = "rewrite" // empty file that exists while the container has to be rewritten
)

// stateJSON is the JSON form of state. Remote is the URL of the session remote; the state is ignored if the URL has
// changed.
type stateJSON struct {
	Remote   string          `json:"remote"`
	Tip      string          `json:"tip"`
	Manifest json.RawMessage `json:"manifest"`
	Next     string          `json:"next,omitempty"`
	NextIs   json.RawMessage `json:"next_manifest,omitempty"`
}

// writeState replaces the state file.
func (r *Remote) writeState(st state) error {
	dir, err := r.stateDir()
	if err != nil {
		return err
	}
	j := stateJSON{Remote: r.URL()}
	encode := func(id object.ID, m manifest) (string, json.RawMessage, error) {
		if id.IsZero() {
			return "", nil, nil
		}
		text, err := m.encode()
		return id.String(), text, err
	}
	if j.Tip, j.Manifest, err = encode(st.Tip, st.Manifest); err != nil {
		return err
	}
	if j.Next, j.NextIs, err = encode(st.Next, st.NextManifest); err != nil {
		return err
	}
	text, err := json.Marshal(j)
	if err == nil {
		err = disk.WriteFile(join(dir, stateName), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write state of the container: %w", err)
	}
	return nil
}

// readState returns the stored state. ok is false if there is none, if it cannot be read, or if it belongs to another
// session remote.
func (r *Remote) readState() (st state, ok bool) {
	dir, err := r.stateDir()
	if err != nil {
		return st, false
	}
	text, err := os.ReadFile(join(dir, stateName))
	if err != nil {
		return st, false
	}
	var j stateJSON
	if json.Unmarshal(text, &j) != nil || j.Remote != r.URL() {
		return st, false
	}
	// decode parses one container of the state. An empty id means that the state does not have this container.
	decode := func(id string, text []byte) (at object.ID, m manifest, err error) {
		if id == "" {
			return at, m, nil
		}
		if at, err = object.ParseID(id); err == nil {
			m, err = decodeManifest(text)
		}
		// The directory may have been used by another session.
		if err == nil && m.Session != r.session {
			err = ErrContainer
		}
		return at, m, err
	}
	// A state that cannot be parsed counts as missing, so the caller fetches the container.
	if st.Tip, st.Manifest, err = decode(j.Tip, j.Manifest); err != nil {
		return st, false
	}
	if st.Next, st.NextManifest, err = decode(j.Next, j.NextIs); err != nil {
		return st, false
	}
	return st, true
}

// writeIDs stores the ids of the objects in the new packs, which Remote.join needs to join these packs later. It
// removes the stored ids of packs that the container no longer contains.
func (r *Remote) writeIDs(m manifest, ids map[string][]object.ID) error {
	dir, err := r.stateDir()
	if err != nil {
		return err
	}
	for name, list := range ids {
		if err := disk.WriteFile(join(dir, name+".ids"), []byte(object.Lines(list)), 0o600); err != nil {
			return fmt.Errorf("write object IDs of %s: %w", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	// The map there holds the names of the files to keep.
	there := map[string]bool{}
	for _, p := range m.Packs {
		there[p.Name+".ids"] = true
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".ids") && !there[e.Name()] {
			if err := os.Remove(join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// readIDs returns the ids of the objects in the pack name. It returns false if the ids are not stored on this host.
func (r *Remote) readIDs(name string) ([]object.ID, bool) {
	dir, err := r.stateDir()
	if err != nil {
		return nil, false
	}
	text, err := os.ReadFile(join(dir, name+".ids"))
	if err != nil {
		return nil, false
	}
	ids, err := object.ParseLines(string(text))
	return ids, err == nil
}

// Rewrite requests that the next push of the Remote with the directory dir rewrites the container, so that it contains
// only objects that are reachable from its refs. The returned function withdraws the request.
func Rewrite(dir string) (withdraw func(), err error) {
	// Store the request as a file, so that it outlives this process.
	name := join(dir, rewriteName)
	return func() { os.Remove(name) }, os.WriteFile(name, nil, 0o600)
}

// rewriting reports whether Rewrite has requested that the next push rewrites the container.
func (r *Remote) rewriting() bool {
	dir, err := r.stateDir()
	if err != nil {
		return false
	}
	_, err = os.Lstat(join(dir, rewriteName))
	return err == nil
}

// rewritten removes the request that Rewrite has stored, after a push has rewritten the container.
func (r *Remote) rewritten() error {
	dir, err := r.stateDir()
	if err == nil {
		err = os.Remove(join(dir, rewriteName))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
