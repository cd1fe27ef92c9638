package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/treediff"
)

var (
	// ErrNoMeta means that a session does not exist: no metadata is stored under its name.
	ErrNoMeta = errors.New("no such session")
	// ErrNotMeta means that a commit or file does not contain valid metadata of the session.
	ErrNotMeta = errors.New("invalid session metadata")
	// ErrNewerMeta means that the metadata of a session has the format of a later version of artifactfs.
	ErrNewerMeta = errors.New("session metadata has a newer version")
)

// Names of the files in the tree of MetaRef's commit, and limits on their size. The limits are needed because other
// users may also write to the session remote.
const (
	metaVersion     = 1                   // version of the format of session.json
	MetaFile        = "session.json"      // file with the fields of Meta, in the tree of MetaRef's commit
	transitionsFile = "transitions.jsonl" // file with Meta.Transitions, in the tree of MetaRef's commit

	maxMetaFile    = 1 << 20  // maximum size of session.json in bytes
	maxTransitions = 16 << 20 // maximum size of transitions.jsonl in bytes; a mount with its unmount adds about 200
	maxLanes       = 1000
	maxActor       = 200  // maximum length of an actor or a reason in bytes
	maxErased      = 200  // maximum number of erasures; the oldest erasures are dropped
	maxErasedIDs   = 4000 // maximum number of IDs in all erasures together
)

// EntryPrefix is the prefix of the refs of cache entries (package cacheentry), which belong to all sessions of a
// session remote.
const EntryPrefix = Prefix + "cache/entries/"

// ProfilePrefix is the prefix of the refs of read profiles (package fetch/readprofile), which belong to all sessions of
// a session remote.
const ProfilePrefix = Prefix + "profile/"

// BaseRef returns the name of the ref that points to the checkpoint of another session from which the mount started.
// The ref keeps GC from removing the objects of the checkpoint, because the mount still reads them.
//
// On the session remote, it is the base commit of a session that is a tree of a clone: git in the clone does not know
// that the tree needs the commit.
func BaseRef(session string) string { return Prefix + "base/" + session }

// restoredPrefix is the prefix of the refs of restored trees. They stay on this host.
const restoredPrefix = Prefix + "restored/"

// RestoredRef returns the name of the ref that points to the tree of a checkpoint that was restored into the working
// tree. The ref keeps the tree if GC removes the checkpoint, because files that were not changed after the restore are
// still read from the tree.
func RestoredRef(session string, id CheckpointID) string {
	return restoredPrefix + session + "/" + string(id)
}

// RestoredWorktreesRef returns the name of the ref that points to the tree of linked worktrees that were restored into
// the working tree. state is the checkpoint state that contains them. The ref keeps the tree, as RestoredRef does.
func RestoredWorktreesRef(session string, state object.ID) string {
	return restoredPrefix + session + "/worktrees-" + state.String()
}

// AdoptedRef returns the name of the ref that points to a checkpoint of another session that was restored or merged
// into this session.
func AdoptedRef(session string, id CheckpointID) string {
	return Prefix + "adopted/" + session + "/" + string(id)
}

// ValidName returns an error unless name can be the name of a session, lane or pin. A name has 1 to 128 letters,
// digits, dots, dashes and underscores, and is a valid component of a ref name (git-check-ref-format(1)).
func ValidName(name string) error {
	switch {
	case name == "" || len(name) > 128:
		return fmt.Errorf("name %.20q has %d characters, want 1 to 128", name, len(name))
	case !refname.Plain(name):
		return fmt.Errorf("invalid name %.140q: want letters, digits, dots, dashes and underscores, with a letter or digit first", name)
	case !refname.PlainComponent(name):
		return fmt.Errorf("name %.140q cannot be part of a git ref name", name)
	}
	return nil
}

// NewCommit returns a new commit with artifactfs as its author and committer. The zero ID as parent means that the
// commit has no parent.
func NewCommit(f object.Format, tree, parent object.ID, at time.Time, message string) (odb.Outgoing, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	if !parent.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	signed(&b, at)
	fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(strings.ReplaceAll(message, "\x00", "")))
	return Outgoing(f, object.Commit, b.Bytes())
}

// CommitsToMerge returns the objects that git merge-tree needs to merge the trees ours and theirs. Git finds the base
// of a merge through commits, so the objects are a root commit with the tree base, two commits with the trees ours and
// theirs and the root commit as parent, and the empty tree. The results us and them are the IDs of the commits with the
// trees ours and theirs.
func CommitsToMerge(f object.Format,
	base, ours, theirs object.ID) (objects []odb.Outgoing, us, them object.ID, err error) {
	commit := func(tree, parent object.ID) (object.ID, error) {
		id, err := object.ParseID(treediff.Name(f, tree))
		if err != nil {
			return id, err
		}
		// The time is fixed, so that the same trees always result in the same commits.
		c, err := NewCommit(f, id, parent, time.Unix(0, 0), "merge")
		objects = append(objects, c)
		return c.ID, err
	}
	root, err := commit(base, object.ID{})
	if err != nil {
		return nil, us, them, err
	}
	us, err1 := commit(ours, root)
	them, err2 := commit(theirs, root)
	empty, err3 := Outgoing(f, object.Tree, nil)
	return append(objects, empty), us, them, errors.Join(err1, err2, err3)
}

// Encode returns the ID of a new commit with the metadata, and all objects that have to be written for it. The
// parameter parent is the commit of the previous version, or the zero ID if there is none.
func (m Meta) Encode(f object.Format, parent object.ID, at time.Time) (object.ID, []odb.Outgoing, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return object.ID{}, nil, err
	}
	var lines bytes.Buffer
	for _, t := range m.Transitions {
		line, err := json.Marshal(t)
		if err != nil {
			return object.ID{}, nil, err
		}
		lines.Write(append(line, '\n'))
	}
	var objects []odb.Outgoing
	var entries []object.TreeEntry
	for _, file := range []struct {
		name    string
		content []byte
	}{{MetaFile, append(text, '\n')}, {transitionsFile, lines.Bytes()}} {
		blob, err := Outgoing(f, object.Blob, file.content)
		if err != nil {
			return object.ID{}, nil, err
		}
		objects = append(objects, blob)
		entries = append(entries, object.TreeEntry{Name: file.name, Mode: object.ModeFile, ID: blob.ID})
	}
	tree, err := Outgoing(f, object.Tree, EncodeTree(entries))
	if err != nil {
		return object.ID{}, nil, err
	}
	commit, err := NewCommit(f, tree.ID, parent, at, fmt.Sprintf("session %s: %s", m.Session, m.subject()))
	if err != nil {
		return object.ID{}, nil, err
	}
	return commit.ID, append(objects, tree, commit), nil
}

// subject returns a description of the last transition, for the subject of the commit.
func (m Meta) subject() string {
	if len(m.Transitions) == 0 {
		return string(m.State)
	}
	t := m.Transitions[len(m.Transitions)-1]
	text := string(t.State)
	if t.Reason != "" {
		text += " (" + t.Reason + ")"
	}
	return text
}

// ParseMeta parses the contents of session.json and transitions.jsonl. It returns ErrNotMeta if they are invalid, and
// ErrNewerMeta if a later version of artifactfs has written them.
func ParseMeta(text, transitions []byte) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(text, &m); err != nil {
		return Meta{}, fmt.Errorf("read %s: %w: %w", MetaFile, ErrNotMeta, err)
	}
	bad := func(format string, args ...any) (Meta, error) {
		return Meta{}, fmt.Errorf("read %s: %w: %w", MetaFile, ErrNotMeta, fmt.Errorf(format, args...))
	}
	switch {
	case m.Version > metaVersion:
		return Meta{}, fmt.Errorf("read %s: %w: %d", MetaFile, ErrNewerMeta, m.Version)
	case m.Version < 1:
		return bad("unknown version %d", m.Version)
	case !slices.Contains(lifeStates, m.State):
		return bad("unknown session state %.40q", m.State)
	case len(m.Lanes) > maxLanes:
		return bad("invalid number of lanes: %d", len(m.Lanes))
	}
	if err := ValidName(m.Session); err != nil {
		return bad("%w", err)
	}
	if _, err := object.ParseFormat(m.Format); err != nil {
		return bad("%w", err)
	}
	if err := ValidBranches(m.Branches); err != nil {
		return bad("%w", err)
	}
	for i, l := range m.Lanes {
		if err := ValidName(l.Name); err != nil {
			return bad("%w", err)
		}
		if l.Segment < 0 || l.Segment > maxSegment ||
			slices.ContainsFunc(m.Lanes[:i], func(o Lane) bool { return o.Name == l.Name }) {
			return bad("lane %s is listed twice or has the invalid segment %d", l.Name, l.Segment)
		}
	}
	for line := range bytes.Lines(transitions) {
		var t Transition
		if err := json.Unmarshal(line, &t); err != nil {
			return Meta{}, fmt.Errorf("read %s: %w: %w", transitionsFile, ErrNotMeta, err)
		}
		m.Transitions = append(m.Transitions, t)
	}
	return m, nil
}

// ReadMeta returns the current metadata of a session and the commit that contains it. It returns ErrNoMeta if the
// session does not exist.
func ReadMeta(r *Repo, session string) (Meta, object.ID, error) {
	id, err := r.Ref(MetaRef(session))
	if err != nil {
		return Meta{}, id, fmt.Errorf("read session %s: %w", session, err)
	}
	if id.IsZero() {
		return Meta{}, id, fmt.Errorf("read session %s: %w", session, ErrNoMeta)
	}
	m, err := MetaAt(r, r.Format(), id)
	if err == nil && m.Session != session {
		err = fmt.Errorf("%w: metadata belongs to session %.140q", ErrNotMeta, m.Session)
	}
	if err != nil {
		return Meta{}, id, fmt.Errorf("read session %s: %w", session, err)
	}
	return m, id, nil
}

// MetaAt returns the metadata in the tree of a commit.
func MetaAt(src Objects, f object.Format, commit object.ID) (Meta, error) {
	content, err := typed(src, commit, object.Commit, object.MaxCommitSize)
	if err != nil {
		return Meta{}, err
	}
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return Meta{}, err
	}
	content, err = typed(src, info.Tree, object.Tree, maxMetaFile)
	if err != nil {
		return Meta{}, err
	}
	entries, err := object.ParseTree(f, content)
	if err != nil {
		return Meta{}, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if limit := map[string]int64{MetaFile: maxMetaFile, transitionsFile: maxTransitions}[e.Name]; limit > 0 {
			if files[e.Name], err = typed(src, e.ID, object.Blob, limit); err != nil {
				return Meta{}, err
			}
		}
	}
	return ParseMeta(files[MetaFile], files[transitionsFile])
}

// changeTries is the maximum number of attempts to change a ref that other processes change at the same time.
const changeTries = 20

// ChangeMeta calls the function change with the current metadata of a session, writes the changed metadata as a new
// version and returns it. If another process writes a version in the meantime, ChangeMeta starts again. If change
// modifies nothing, ChangeMeta writes nothing.
func ChangeMeta(ctx context.Context, r *Repo, session string, change func(m *Meta, now time.Time) error) (Meta, error) {
	defer r.Working()()
	for range changeTries {
		m, before, err := ReadMeta(r, session)
		if err != nil {
			return Meta{}, err
		}
		// Copy m first, because the function change modifies slices of m in place.
		was := m.Clone()
		now := time.Now().UTC()
		if err := change(&m, now); err != nil {
			return was, err
		}
		if was.Equal(m) {
			return m, nil
		}
		if _, err = writeMeta(ctx, r, m, before, before, now); !errors.Is(err, ErrRefMoved) {
			return m, err
		}
	}
	return Meta{}, fmt.Errorf("write session %s: %w", session, ErrRefMoved)
}

// Equal reports whether two versions of the metadata have equal contents. Of the transitions it compares only the
// number, because transitions are only ever appended.
func (m Meta) Equal(o Meta) bool {
	if len(m.Transitions) != len(o.Transitions) {
		return false
	}
	x, errX := json.Marshal(m)
	y, errY := json.Marshal(o)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// NoteErased records in the metadata that transcript records were erased. Forks of the session read this, and erase the
// same records from their copies.
func NoteErased(ctx context.Context, r *Repo, session string, e Erasure) error {
	_, err := ChangeMeta(ctx, r, session, func(m *Meta, _ time.Time) error {
		e.By, e.Why = e.By[:min(maxActor, len(e.By))], e.Why[:min(maxActor, len(e.Why))]
		m.erase(e)
		return nil
	})
	return err
}

// erase records the erasure e, and removes the oldest erasures beyond the limits maxErased and maxErasedIDs.
func (m *Meta) erase(e Erasure) {
	// If an equal or wider erasure is recorded already, nothing has to be added.
	if slices.ContainsFunc(m.Erased, func(o Erasure) bool { return o.covers(e) }) {
		return
	}
	m.Erased = append(slices.Clone(m.Erased), e)
	for {
		ids := 0
		for _, e := range m.Erased {
			ids += len(e.IDs)
		}
		if len(m.Erased) <= maxErased && ids <= maxErasedIDs || len(m.Erased) == 1 {
			return
		}
		m.Erased = m.Erased[1:]
	}
}

// writeMeta writes a new version of the metadata as a child of the commit parent, and changes MetaRef from the commit
// old to the new one. It returns ErrRefMoved if MetaRef does not point to old.
func writeMeta(ctx context.Context, r *Repo, m Meta, parent, old object.ID, now time.Time) (object.ID, error) {
	id, objects, err := m.Encode(r.Format(), parent, now)
	if err == nil {
		err = r.Record(ctx, objects, []RefChange{{Name: MetaRef(m.Session), Old: old, New: id}})
	}
	if err != nil {
		return object.ID{}, fmt.Errorf("write session %s: %w", m.Session, err)
	}
	return id, nil
}

// CreateMeta writes the first version of a session's metadata and returns it. If the session has metadata already,
// CreateMeta writes nothing and returns the existing metadata.
func CreateMeta(ctx context.Context, r *Repo, m Meta, actor string) (Meta, error) {
	if known, _, err := ReadMeta(r, m.Session); !errors.Is(err, ErrNoMeta) {
		return known, err
	}
	now := time.Now().UTC()
	m.Version, m.Began, m.State, m.Format = metaVersion, now, Open, r.Format().String()
	m.Lanes, m.Transitions = []Lane{}, nil
	m.transit(Open, now, actor, "begun")
	defer r.Working()()
	_, err := writeMeta(ctx, r, m, object.ID{}, object.ID{}, now)
	// If another process has created the same session first, return the metadata that this process has written.
	if errors.Is(err, ErrRefMoved) {
		m, _, err = ReadMeta(r, m.Session)
	}
	return m, err
}
