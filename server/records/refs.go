package records

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// batch is the maximum number of refs that one statement reads or writes. Longer statements are slower to compile, and
// PostgreSQL allows 65535 placeholders.
const batch = 100

// few is the maximum number of updates for which only the refs that they concern are read. For more updates, all refs
// of the repository are read.
const few = 16

// The result of an update that fails is one of these errors, or an error that names conflicting refs. The texts are
// those of git.
var (
	errStale    = errors.New("stale ref")
	errExists   = errors.New("reference already exists")
	errRepeated = errors.New("multiple updates for the same ref are not allowed")
	ErrAtomic   = errors.New("atomic push failure")
	errID       = errors.New("invalid object id")
)

// refSet is the state of refs within a transaction that has locked their repository. It contains at least the refs that
// the updates of the transaction concern.
type refSet struct {
	ids     map[string]string // ids of existing refs by name
	below   map[string]int    // number of refs below each directory, such as refs/heads
	changed map[string]bool   // names of the refs that were changed
	done    []RefUpdate       // updates that have changed a ref
}

// affected returns the present state of three kinds of refs: the refs that the updates change; refs that conflict with
// them, because one name is a directory of the other; and the refs with the names in assumed.
func (t *tx) affected(ctx context.Context, repo refRows, updates []RefUpdate, assumed []Ref) (*refSet, error) {
	s := &refSet{ids: map[string]string{}, below: map[string]int{}, changed: map[string]bool{}}
	if len(updates) > few {
		all, err := t.allRefs(ctx, repo)
		for _, r := range all {
			s.put(r.Name, r.ID)
		}
		return s, err
	}
	names := map[string]bool{}
	for _, r := range assumed {
		names[r.Name] = true
	}
	for _, u := range updates {
		names[u.Name] = true
		if u.Removes() {
			continue
		}
		for dir := range parents(u.Name) {
			names[dir] = true
		}
	}
	named, err := t.namedRefs(ctx, repo, slices.Sorted(maps.Keys(names)))
	if err != nil {
		return nil, err
	}
	for _, r := range named {
		s.put(r.Name, r.ID)
	}
	for _, u := range updates {
		if u.Removes() || s.ids[u.Name] != "" {
			continue
		}
		// The updates can remove at most as many refs below this name as there are updates. With one ref more, the
		// state shows whether a ref remains.
		found, err := t.refs(ctx, repo, " WHERE v.name > $3 AND v.name < $4 ORDER BY v.name LIMIT $5",
			[]byte(u.Name+"/"), []byte(u.Name+"0"), len(updates)+1)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			s.put(r.Name, r.ID)
		}
	}
	return s, nil
}

// apply makes the updates that are possible, and returns a list with an error for each of the others. Removals are made
// first, so that one push can replace refs/heads/a by refs/heads/a/b.
func (s *refSet) apply(updates []RefUpdate, atomic bool) []error {
	return s.applyOthers(updates, atomic, make([]error, len(updates)))
}

// applyOthers is like apply, but skips the updates that already have an error in results. It sets and returns results.
func (s *refSet) applyOthers(updates []RefUpdate, atomic bool, results []error) []error {
	seen := map[string]bool{}
	for i, u := range updates {
		if seen[u.Name] && results[i] == nil {
			results[i] = errRepeated
		}
		seen[u.Name] = true
	}
	for _, removals := range []bool{true, false} {
		for i, u := range updates {
			if u.Removes() == removals && results[i] == nil {
				results[i] = s.update(u)
			}
		}
	}
	if atomic && slices.ContainsFunc(results, func(err error) bool { return err != nil }) {
		for i := range results {
			if results[i] == nil {
				results[i] = ErrAtomic
			}
		}
		clear(s.changed)
		s.done = nil
	}
	return results
}

func (s *refSet) update(u RefUpdate) error {
	old, ok := s.ids[u.Name]
	switch {
	case !object.ValidID(u.Old) || !object.ValidID(u.New):
		return errID
	case ok && old == u.New && !u.Removes(): // another push has made the same update already, which counts as a success
		return nil
	case ok && u.Creates() && !u.Removes():
		return errExists
	case ok != !u.Creates() || ok && old != u.Old:
		return errStale
	case u.Old == u.New || !ok && u.Removes():
		return nil
	}
	switch {
	case u.Removes():
		s.remove(u.Name)
	case ok:
		s.ids[u.Name] = u.New
	default:
		if other := s.conflict(u.Name); other != "" {
			if s.changed[other] {
				return fmt.Errorf("cannot process '%s' and '%s' at the same time", other, u.Name)
			}
			return fmt.Errorf("'%s' exists; cannot create '%s'", other, u.Name)
		}
		s.put(u.Name, u.New)
	}
	s.changed[u.Name] = true
	s.done = append(s.done, u)
	return nil
}

func (s *refSet) put(name, id string) {
	if _, ok := s.ids[name]; !ok {
		for dir := range parents(name) {
			s.below[dir]++
		}
	}
	s.ids[name] = id
}

func (s *refSet) remove(name string) {
	delete(s.ids, name)
	for dir := range parents(name) {
		s.below[dir]--
	}
}

// conflict returns a ref that cannot exist together with the ref name, because one name is a directory of the other. It
// returns "" if there is no such ref.
func (s *refSet) conflict(name string) string {
	for dir := range parents(name) {
		if _, ok := s.ids[dir]; ok {
			return dir
		}
	}
	if s.below[name] == 0 {
		return ""
	}
	first := ""
	for other := range s.ids {
		if strings.HasPrefix(other, name+"/") && (first == "" || other < first) {
			first = other
		}
	}
	return first
}

// removed returns the names of the refs that the updates have removed. written returns the refs that they have created
// or moved.
func (s *refSet) removed() (names []string) {
	for name := range s.changed {
		if _, ok := s.ids[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *refSet) written() (refs []Ref) {
	for name := range s.changed {
		if id, ok := s.ids[name]; ok {
			refs = append(refs, Ref{name, id})
		}
	}
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	return refs
}

// putRefs stores refs in the table refs, with the key repo.
func (t *tx) putRefs(ctx context.Context, repo int64, refs []Ref) error {
	for chunk := range slices.Chunk(refs, batch) {
		var args []any
		for _, r := range chunk {
			id, err := hex.DecodeString(r.ID)
			if err != nil {
				return fmt.Errorf("id of ref %q: %w", r.Name, err)
			}
			args = append(args, repo, []byte(r.Name), id)
		}
		if _, err := t.exec(ctx, "INSERT INTO refs (repo, name, id) VALUES "+values(len(chunk), 3, 1)+
			" ON CONFLICT (repo, name) DO UPDATE SET id = excluded.id", args...); err != nil {
			return err
		}
	}
	return nil
}

// parents yields the directories of a ref: refs/heads and refs for refs/heads/main.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			if !yield(name[:i]) {
				return
			}
		}
	}
}
