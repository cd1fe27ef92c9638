package archive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// OldestRecords returns the day of the oldest records of a session's transcript that were not erased, as far as the
// metadata m says. It is zero if there are none. Records are stored in files DAY/NAME.
func OldestRecords(from session.Objects, f object.Format, m session.Meta, refs []records.Ref) (oldest time.Time) {
	var erased time.Time
	for _, e := range m.Erased {
		if len(e.Except) == 0 && e.Before.After(erased) {
			erased = e.Before
		}
	}
	i := slices.IndexFunc(refs, func(r records.Ref) bool { return r.Name == session.TranscriptRef(m.Session) })
	if i < 0 {
		return oldest
	}
	for _, e := range rootOf(from, f, refs[i].ID) {
		day, err := time.Parse(time.DateOnly, e.Name)
		if err == nil && day.Add(24*time.Hour).After(erased) && (oldest.IsZero() || day.Before(oldest)) {
			oldest = day
		}
	}
	return oldest
}

// rootOf returns the entries of the root of a commit; nil if they cannot be read.
func rootOf(from session.Objects, f object.Format, commit string) []object.TreeEntry {
	id, err := object.ParseIDOf(f, commit)
	if err != nil {
		return nil
	}
	_, text, err := from.Get(id, object.MaxCommitSize)
	if err != nil {
		return nil
	}
	info, err := object.ParseCommit(f, text)
	if err != nil {
		return nil
	}
	if _, text, err = from.Get(info.Tree, object.MaxTreeSize); err != nil {
		return nil
	}
	entries, _ := object.ParseTree(f, text)
	return entries
}

// Erase erases the records of a session's transcript that are older than the time before, and records the erasure in
// its metadata. If the session is archived, its bundle is replaced; the old one is removed as unused.
func (a *Archiver) Erase(ctx context.Context, repoID, name string, archived bool, before time.Time, by By) error {
	erase := a.eraseLive
	if archived {
		erase = a.eraseArchived
	}
	if err := erase(ctx, repoID, name, before, by); err != nil {
		return fmt.Errorf("erase records of session %s: %w", name, err)
	}
	return nil
}

// eraseLive erases records of a session whose refs are in the repository.
func (a *Archiver) eraseLive(ctx context.Context, repoID, name string, before time.Time, by By) error {
	on, snap, err := a.o.Replicas.Snapshot(ctx, repoID)
	if err != nil {
		return err
	}
	defer on.Release()
	r, err := a.rewriter(ctx, on.Dir, snap.Repo.ObjectFormat, snap.Refs, name)
	if err != nil {
		return err
	}
	defer r.close()
	changes, err := r.erase(ctx, name, before, by)
	if err != nil || len(changes) == 0 {
		return err
	}
	var revs strings.Builder
	for _, c := range changes {
		revs.WriteString(c.New + "\n^" + c.Old + "\n")
	}
	out, err := r.git().Output(ctx, revs.String(), "pack-objects", "-q", "--revs", "--delta-base-offset",
		filepath.Join(r.scratch, "pack"))
	if err != nil {
		return err
	}
	p, err := a.o.Replicas.Store(ctx, r.scratch, strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	return a.Push(ctx, snap.Repo, changes, &p, by)
}

// Push makes updates of refs, all or none, without a token. The caller has checked that they are allowed. It returns
// records.ErrChanged if one of the refs has changed in the meantime.
func (a *Archiver) Push(ctx context.Context, r records.Repo, updates []records.RefUpdate, p *records.Pack,
	by By) error {
	results, err := a.o.Records.Repos.Push(ctx, records.Push{RepoID: r.ID, Version: r.Version, Updates: updates,
		Atomic: true, Pack: p,
		Cause: by.Cause, Detail: by.Reason, Usage: Rules, Events: by.events(r)})
	for _, failed := range results {
		if err == nil && failed != nil {
			err = fmt.Errorf("%w: %w", records.ErrChanged, failed)
		}
	}
	return err
}

// eraseArchived erases records of an archived session.
func (a *Archiver) eraseArchived(ctx context.Context, repoID, name string, before time.Time, by By) error {
	f, err := a.fetch(ctx, repoID, name)
	if err != nil {
		return err
	}
	defer f.close()
	snap, err := a.o.Records.Repos.Snapshot(ctx, repoID)
	if err != nil {
		return err
	}
	if snap.Repo.Version != f.copy.Repo.Version {
		return records.ErrChanged
	}
	r, err := a.rewriter(ctx, f.copy.Dir, snap.Repo.ObjectFormat, append(snap.Refs, f.refs...), name)
	if err != nil {
		return err
	}
	defer r.close()
	changes, err := r.erase(ctx, name, before, by)
	if err != nil || len(changes) == 0 {
		return err
	}
	s := records.Archiving{Archive: f.row, Refs: slices.Clone(f.refs)}
	for _, c := range changes {
		for i := range s.Refs {
			if s.Refs[i].Name == c.Name {
				s.Refs[i].ID = c.New
			}
		}
	}
	r.sessions[name] = s.Refs
	m, err := r.meta(name)
	if err == nil {
		err = r.fill(ctx, &s, m)
	}
	if err != nil {
		return err
	}
	return a.o.Records.Archives.Replace(ctx, repoID, f.row.Pack.ID, s.Archive, by.Cause)
}

// rewriter changes a session in a scratch repository, which reads the objects of the repository of the session.
type rewriter struct {
	*writer
	repo *session.Repo
}

// rewriter opens a scratch repository with the transcript and the metadata of a session. The parameter refs contains
// the refs of the session and of its repository, whose git directory is from.
func (a *Archiver) rewriter(ctx context.Context, from, format string, refs []records.Ref,
	name string) (r *rewriter, err error) {
	f, err := object.ParseFormat(format)
	if err != nil {
		return nil, err
	}
	scratch, err := a.o.Replicas.Scratch()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(scratch, "session.git")
	repo, err := session.OpenRepo(dir, session.RepoOptions{Format: f, Session: name,
		Borrow: []string{filepath.Join(from, "objects")}})
	if err != nil {
		_ = os.RemoveAll(scratch)
		return nil, err
	}
	r = &rewriter{a.writer(dir, f, repo, refs, scratch), repo}
	var all []session.RefChange
	for _, ref := range r.sessions[name] {
		id, err := object.ParseIDOf(f, ref.ID)
		if err != nil {
			r.close()
			return nil, err
		}
		if ref.Name == session.TranscriptRef(name) || ref.Name == session.MetaRef(name) {
			all = append(all, session.RefChange{Name: ref.Name, New: id, Force: true})
		}
	}
	if err := repo.Update(ctx, all); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rewriter) close() {
	_ = r.repo.Close()
	_ = os.RemoveAll(r.scratch)
}

// erase erases records of a session in the scratch repository, and returns the changes of its refs.
func (r *rewriter) erase(ctx context.Context, name string, before time.Time,
	by By) (changes []records.RefUpdate, err error) {
	now := time.Now().UTC()
	if _, _, err := transcript.Erase(ctx, r.repo, transcript.EraseRequest{Session: name, Before: before,
		Stone: transcript.Tombstone{Time: now, By: by.Actor, Why: by.Reason}}, nil); err != nil {
		return nil, err
	}
	if err := session.NoteErased(ctx, r.repo, name,
		session.Erasure{Before: before, Time: now, By: by.Actor, Why: by.Reason}); err != nil {
		return nil, err
	}
	for _, ref := range r.sessions[name] {
		id, err := r.repo.Ref(ref.Name)
		if err != nil {
			return nil, err
		}
		if !id.IsZero() && id.String() != ref.ID {
			changes = append(changes, records.RefUpdate{Name: ref.Name, Old: ref.ID, New: id.String()})
		}
	}
	return changes, nil
}
