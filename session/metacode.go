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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

var (
	// ErrNoMeta says that nothing is known of a session.
	ErrNoMeta = errors.New("no such session")
	// ErrNotMeta says that a commit does not tell what a session is.
	ErrNotMeta = errors.New("no session's metadata")
	// ErrNewerMeta says that a later version of this program has written it.
	ErrNewerMeta = errors.New("metadata of a later version")
)

const (
	metaVersion     = 1
	metaFile        = "session.json"
	transitionsFile = "transitions.jsonl"

	maxMetaFile    = 1 << 20  // bytes
	maxTransitions = 16 << 20 // bytes; a mount and its end take about 200
	maxLanes       = 1000
	maxActor       = 200 // bytes of an actor or a reason
	maxErased      = 200 // erasures; of more the oldest are forgotten
	maxErasedIDs   = 4000
)

// BaseRef is the checkpoint that a mount began with which was not made in it. It is there because the mount reads what that
// checkpoint holds.
func BaseRef(session string) string { return Prefix + "base/" + session }

// RestoredRef is the tree of a checkpoint that was brought back into the working tree. It is there because files and directories
// that were not read or changed since are read from it, whatever becomes of the checkpoint.
func RestoredRef(session string, id PointID) string {
	return Prefix + "restored/" + session + "/" + string(id)
}

// AdoptedRef is a checkpoint of another session that was restored or merged in this one.
func AdoptedRef(session string, id PointID) string {
	return Prefix + "adopted/" + session + "/" + string(id)
}

// ValidName reports whether a lane or a pin may have a name: it must be a component of a ref's name (git-check-ref-format).
func ValidName(name string) error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	switch {
	case name == "" || len(name) > 128:
		return fmt.Errorf("a name has 1 to 128 characters, %.20q has %d", name, len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) || strings.ContainsRune("._-", rune(name[0])):
		return fmt.Errorf("%.140q is no name: letters, digits, dots, dashes and underscores are, a letter or digit first", name)
	case strings.Contains(name, "..") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, ".lock"):
		return fmt.Errorf("%.140q cannot be a part of a git ref's name", name)
	}
	return nil
}

// NewCommit returns a commit without a personal author. Parent is the one before; zero: there is none.
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

// encode gives the commit of the metadata, and the objects that it is made of. Parent is the version before; zero: none.
func (m Meta) encode(f object.Format, parent object.ID, at time.Time) (object.ID, []odb.Outgoing, error) {
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
	}{{metaFile, append(text, '\n')}, {transitionsFile, lines.Bytes()}} {
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

// subject tells of the last thing that has become of the session.
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

// ParseMeta reads session.json and transitions.jsonl.
func ParseMeta(text, transitions []byte) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(text, &m); err != nil {
		return Meta{}, fmt.Errorf("read %s: %w: %w", metaFile, ErrNotMeta, err)
	}
	bad := func(format string, args ...any) (Meta, error) {
		return Meta{}, fmt.Errorf("read %s: %w: %w", metaFile, ErrNotMeta, fmt.Errorf(format, args...))
	}
	switch {
	case m.Version > metaVersion:
		return Meta{}, fmt.Errorf("read %s: %w: %d", metaFile, ErrNewerMeta, m.Version)
	case m.Version < 1:
		return bad("version %d", m.Version)
	case !slices.Contains(lifeStates, m.State):
		return bad("state %.40q", m.State)
	case len(m.Lanes) > maxLanes:
		return bad("%d lanes", len(m.Lanes))
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
		if l.Segment < 0 || l.Segment > maxSegment || slices.ContainsFunc(m.Lanes[:i], func(o Lane) bool { return o.Name == l.Name }) {
			return bad("lane %s is there twice, or has no segment %d", l.Name, l.Segment)
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

// ReadMeta returns the metadata of a session, and the commit that holds it.
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
		err = fmt.Errorf("%w: it is that of session %.140q", ErrNotMeta, m.Session)
	}
	if err != nil {
		return Meta{}, id, fmt.Errorf("read session %s: %w", session, err)
	}
	return m, id, nil
}

// MetaAt returns the metadata that a commit holds.
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
		if limit := map[string]int64{metaFile: maxMetaFile, transitionsFile: maxTransitions}[e.Name]; limit > 0 {
			if files[e.Name], err = typed(src, e.ID, object.Blob, limit); err != nil {
				return Meta{}, err
			}
		}
	}
	return ParseMeta(files[metaFile], files[transitionsFile])
}

// changeTries is how often a change begins anew because somebody else was quicker.
const changeTries = 20

// changeMeta makes the next version of what a session is. If change changes nothing there is none.
func changeMeta(ctx context.Context, r *Repo, session string, change func(m *Meta, now time.Time) error) (Meta, error) {
	defer r.Working()()
	for range changeTries {
		m, before, err := ReadMeta(r, session)
		if err != nil {
			return Meta{}, err
		}
		was := m.clone()
		now := time.Now().UTC()
		if err := change(&m, now); err != nil {
			return was, err
		}
		if same(was, m) {
			return m, nil
		}
		if _, err = writeMeta(ctx, r, m, before, before, now); !errors.Is(err, ErrRefMoved) {
			return m, err
		}
	}
	return Meta{}, fmt.Errorf("write session %s: %w", session, ErrRefMoved)
}

func same(a, b Meta) bool {
	if len(a.Transitions) != len(b.Transitions) {
		return false
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// NoteErased records that records of a session's transcript were erased, so that its forks learn of it.
func NoteErased(ctx context.Context, r *Repo, session string, e Erasure) error {
	_, err := changeMeta(ctx, r, session, func(m *Meta, _ time.Time) error {
		e.By, e.Why = e.By[:min(maxActor, len(e.By))], e.Why[:min(maxActor, len(e.Why))]
		m.erase(e)
		return nil
	})
	return err
}

// erase adds an erasure, and forgets the oldest ones beyond what the metadata may hold.
func (m *Meta) erase(e Erasure) {
	if slices.ContainsFunc(m.Erased, func(o Erasure) bool { return slices.Equal(o.IDs, e.IDs) && !o.Before.Before(e.Before) }) {
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

// writeMeta writes a version on top of parent, and has MetaRef, which is now at old, name it.
func writeMeta(ctx context.Context, r *Repo, m Meta, parent, old object.ID, now time.Time) (object.ID, error) {
	id, objects, err := m.encode(r.Format(), parent, now)
	if err == nil {
		err = r.Record(ctx, objects, []RefChange{{Name: MetaRef(m.Session), Old: old, New: id}})
	}
	if err != nil {
		return object.ID{}, fmt.Errorf("write session %s: %w", m.Session, err)
	}
	return id, nil
}

// Begin writes the first version of a session's metadata and returns it, or the metadata that the session has already.
func Begin(ctx context.Context, r *Repo, m Meta, actor string) (Meta, error) {
	if known, _, err := ReadMeta(r, m.Session); !errors.Is(err, ErrNoMeta) {
		return known, err
	}
	now := time.Now().UTC()
	m.Version, m.Began, m.State, m.Format = metaVersion, now, Open, r.Format().String()
	m.Lanes, m.Transitions = []Lane{}, nil
	m.transit(Open, now, actor, "begun")
	defer r.Working()()
	_, err := writeMeta(ctx, r, m, object.ID{}, object.ID{}, now)
	if errors.Is(err, ErrRefMoved) {
		m, _, err = ReadMeta(r, m.Session)
	}
	return m, err
}
