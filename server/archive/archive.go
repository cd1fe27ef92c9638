// Package archive moves sessions out of repositories: an archived session is one git bundle in the object store and one
// row, and has no ref and no pack in its repository. It costs nothing but stored bytes until it is reopened.
//
// The bundle contains the objects of the session that no branch and no tag of the repository reaches. The commits on
// which it is based (its prerequisites) are kept by refs in the repository, which sessions with the same base share.
//
// The bundle is recorded and stored before the transaction that removes the refs; packs of a session that is reopened
// are stored before the transaction that creates them. So a process that dies loses nothing, and leaves files that
// package upkeep removes as unused.
package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
)

// together is the maximum number of sessions that one transaction archives.
const together = 50

// Options configures an Archiver.
type Options struct {
	Records  *records.DB
	Objects  objects.Store
	Replicas *replica.Set
}

// Archiver archives and reopens sessions. It may be used from any goroutine.
type Archiver struct{ o Options }

// New returns an Archiver.
func New(o Options) *Archiver { return &Archiver{o} }

// By describes who requests a change, for the audit log, the events and the history of the session.
type By struct {
	Cause  records.Cause
	Stamp  events.Stamp
	Actor  string // recorded in the history of the session
	Reason string
}

// Info describes an archived session. It is stored with the record, so that lists need no bundle.
type Info struct {
	State   session.LifeState `json:"state"` // state before the session was archived
	Title   string            `json:"title,omitempty"`
	Owner   string            `json:"owner,omitempty"`
	Tags    []string          `json:"tags,omitempty"`
	Began   time.Time         `json:"began"`
	Expires time.Time         `json:"expires,omitzero"`
	// Records is the day of the oldest records of the transcript that were not erased; zero if there are none.
	Records time.Time `json:"records,omitzero"`
}

// InfoOf returns the description of an archived session. It is empty if the record has none that can be read.
func InfoOf(a records.Archive) (i Info) {
	_ = json.Unmarshal([]byte(a.Info), &i)
	return i
}

// Refused means that a session cannot be archived or reopened in its present state. The text is for people.
type Refused struct{ Session, Reason string }

func (r *Refused) Error() string { return "session " + r.Session + " " + r.Reason }

// ErrThin means that the objects of a repository are elsewhere, so that its sessions cannot be bundled.
var ErrThin = errors.New("sessions of a thin repository cannot be archived: its objects are in another repository")

// Archive archives sessions of a repository. The result contains an error for each session that was not archived:
// records.ErrNotFound, records.ErrChanged if it was changed at the same time, and errors of the types *Refused and
// *profile.OnHoldError.
func (a *Archiver) Archive(ctx context.Context, repoID string, names []string, by By) (results []error, err error) {
	for chunk := range slices.Chunk(names, together) {
		some, err := a.archive(ctx, repoID, chunk, by)
		if err != nil {
			return results, fmt.Errorf("archive sessions: %w", err)
		}
		results = append(results, some...)
	}
	return results, nil
}

func (a *Archiver) archive(ctx context.Context, repoID string, names []string, by By) ([]error, error) {
	on, snap, err := a.o.Replicas.Snapshot(ctx, repoID)
	if err != nil {
		return nil, err
	}
	defer on.Release()
	if snap.Repo.BaseURL != "" {
		return nil, ErrThin
	}
	scratch, err := a.o.Replicas.Scratch()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	format, err := object.ParseFormat(snap.Repo.ObjectFormat)
	if err != nil {
		return nil, err
	}
	store, err := odb.Open(filepath.Join(on.Dir, "objects"), format)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	w := a.writer(on.Dir, format, store, snap.Refs, scratch)
	results := make([]error, len(names))
	var all []records.Archiving
	var at []int // index in names of each element of all
	for i, name := range names {
		made, err := w.bundle(ctx, name)
		if err == nil {
			all, at = append(all, made), append(at, i)
			continue
		}
		if results[i] = err; ctx.Err() != nil || !expected(err) {
			return nil, err
		}
	}
	if len(all) == 0 {
		return results, nil
	}
	put, err := a.o.Records.Archives.Put(ctx, repoID, snap.Repo.Version, all, by.Cause, by.events(snap.Repo))
	for i, err := range put {
		results[at[i]] = err
	}
	return results, err
}

// events returns a function that makes the events for changes of refs.
func (by By) events(r records.Repo) func(done []records.RefUpdate) []records.Event {
	if by.Stamp.Time.IsZero() {
		by.Stamp.Time = time.Now()
	}
	return func(done []records.RefUpdate) []records.Event { return events.Pushed(by.Stamp, r, done, nil) }
}

// Rules is the actor of changes that the retention of a namespace makes. They do not count as changes of a session.
const Rules = "retention"

// writer makes bundles of sessions of a repository in a replica.
type writer struct {
	*Archiver
	dir      string // git directory
	scratch  string
	format   object.Format
	objects  session.Objects
	sessions map[string][]records.Ref
	others   string // lines that exclude from bundles what branches, tags and bases reach, for git rev-list
}

// writer prepares the bundles of sessions of a repository with some refs, whose objects are in a git directory.
func (a *Archiver) writer(dir string, f object.Format, from session.Objects, refs []records.Ref,
	scratch string) *writer {
	w := &writer{Archiver: a, dir: dir, scratch: scratch, format: f, objects: from, sessions: map[string][]records.Ref{}}
	var others strings.Builder
	for _, r := range refs {
		name := records.SessionOf(r.Name)
		if name != "" {
			w.sessions[name] = append(w.sessions[name], r)
		}
		// Refs of other sessions are no bases: they are archived, shortened and erased themselves.
		if strings.HasPrefix(r.Name, session.Prefix+"ground/") || records.IsBase(r.Name) ||
			name == "" && (strings.HasPrefix(r.Name, "refs/heads/") || strings.HasPrefix(r.Name, "refs/tags/")) {
			others.WriteString("^" + r.ID + "\n")
		}
	}
	w.others = others.String()
	return w
}

// bundle makes and stores the bundle of a session.
func (w *writer) bundle(ctx context.Context, name string) (s records.Archiving, err error) {
	s.Session, s.Refs = name, w.sessions[name]
	m, err := w.meta(name)
	if err != nil {
		return s, err
	}
	if err := m.OnHold(name); err != nil {
		return s, err
	}
	s.Changed = Changed(w.objects, w.format, m, s.Refs)
	if m.Abandon(s.Changed, time.Now()); m.InUse(time.Now()) {
		return s, &Refused{name, "is active: unmount it, or run artifactfs session pause if its machine is gone"}
	}
	err = w.fill(ctx, &s, m)
	return s, err
}

// fill makes and stores the bundle of a session with the metadata m, whose refs are set.
func (w *writer) fill(ctx context.Context, s *records.Archiving, m session.Meta) error {
	text, err := json.Marshal(Info{State: m.State, Title: m.Title, Owner: m.Owner, Tags: m.Tags, Began: m.Began,
		Expires: m.Expires,
		Records: OldestRecords(w.objects, w.format, m, s.Refs)})
	if err != nil {
		return err
	}
	s.Info = string(text)
	var revs strings.Builder
	for _, r := range s.Refs {
		revs.WriteString(r.ID + "\n")
	}
	revs.WriteString(w.others)
	s.Pack, s.Bases, err = w.pack(ctx, s.Refs, revs.String())
	return err
}

// meta returns the metadata of a session.
func (w *writer) meta(name string) (m session.Meta, err error) {
	i := slices.IndexFunc(w.sessions[name], func(r records.Ref) bool { return r.Name == session.MetaRef(name) })
	if i < 0 {
		return m, fmt.Errorf("session %s: %w", name, records.ErrNotFound)
	}
	id, err := object.ParseIDOf(w.format, w.sessions[name][i].ID)
	if err == nil {
		m, err = session.MetaAt(w.objects, w.format, id)
	}
	if err != nil {
		return m, &Refused{name, "has metadata that cannot be read: " + err.Error()}
	}
	return m, nil
}

// Changed returns the time of the last change of a session with the metadata m: of its newest checkpoint, of its state,
// or of its profile. Changes by rules do not count.
func Changed(objects session.Objects, f object.Format, m session.Meta, refs []records.Ref) time.Time {
	last := m.Began
	for _, t := range m.Transitions {
		if t.Actor != Rules && t.Time.After(last) {
			last = t.Time
		}
	}
	if m.Edited.After(last) {
		last = m.Edited
	}
	for _, r := range refs {
		if !strings.HasPrefix(r.Name, session.LanePrefix(m.Session)) {
			continue
		}
		id, err := object.ParseIDOf(f, r.ID)
		if err != nil {
			continue
		}
		if _, text, err := objects.Get(id, object.MaxCommitSize); err == nil {
			if p, err := session.ParseCheckpoint(f, id, text); err == nil && p.Time.After(last) {
				last = p.Time
			}
		}
	}
	return last
}

// pack makes and stores the bundle with the objects of a list of revisions. It returns the record of the bundle, and
// the commits outside of the bundle that it needs.
func (w *writer) pack(ctx context.Context, refs []records.Ref,
	revs string) (p records.Pack, bases []string, err error) {
	p = records.Pack{ID: records.NewID(), Extensions: []string{records.BundleExtension}}
	if bases, p.Objects, err = w.bases(ctx, refs, revs); err != nil {
		return p, nil, err
	}
	file := filepath.Join(w.scratch, p.ID+records.BundleExtension)
	to, err := os.Create(file)
	if err != nil {
		return p, nil, err
	}
	defer os.Remove(file)
	_, err = to.Write(bundleHead(w.format, bases, refs))
	if err == nil {
		// Objects are stored as differences from those of the bases. With a bitmap, git would also use others, which may be
		// removed later.
		cmd := w.git().Command(ctx, "pack-objects", "-q", "--revs", "--thin", "--stdout", "--delta-base-offset",
			"--no-use-bitmap-index")
		cmd.Stdin, cmd.Stdout = strings.NewReader(revs), to
		err = gitcmd.Run(cmd)
	}
	var info os.FileInfo
	if err == nil {
		info, err = to.Stat()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return p, nil, err
	}
	p.Bytes = info.Size()
	if err := w.o.Records.Packs.Begin(ctx, p); err != nil {
		return p, nil, err
	}
	return p, bases, objects.Classify(w.o.Objects.Put(ctx, p.Key(records.BundleExtension), file))
}

// bases returns the commits outside of a bundle with a list of revisions that the objects in the bundle need: those at
// the boundary of the revisions, and those of refs that other refs reach, too. It also returns the number of objects in
// the bundle.
func (w *writer) bases(ctx context.Context, refs []records.Ref, revs string) (bases []string, count int64, err error) {
	out, err := w.git().Output(ctx, revs, "rev-list", "--objects", "--boundary", "--stdin")
	if err != nil {
		return nil, 0, err
	}
	inside, found := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		id, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if base, ok := strings.CutPrefix(id, "-"); ok {
			found[base] = true
		} else {
			inside[id] = true
		}
	}
	for _, r := range refs {
		if !inside[r.ID] {
			found[r.ID] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), int64(len(inside)), nil
}

// git returns how git runs in the repository.
func (w *writer) git() gitcmd.Repo { return w.o.Replicas.Git().In(w.dir) }

// bundleHead returns the part of a bundle before its pack (gitformat-bundle(5)).
func bundleHead(f object.Format, bases []string, refs []records.Ref) []byte {
	var head bytes.Buffer
	if f == object.SHA1 {
		head.WriteString("# v2 git bundle\n")
	} else {
		head.WriteString("# v3 git bundle\n@object-format=" + f.String() + "\n")
	}
	for _, id := range bases {
		head.WriteString("-" + id + "\n")
	}
	for _, r := range refs {
		head.WriteString(r.ID + " " + r.Name + "\n")
	}
	head.WriteString("\n")
	return head.Bytes()
}

// expected reports whether an error concerns one session and not the repository.
func expected(err error) bool {
	var refused *Refused
	return errors.Is(err, records.ErrNotFound) || errors.As(err, &refused) || isHeld(err)
}
