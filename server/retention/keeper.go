package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/archive"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/trash"
)

const (
	page      = 1000             // repositories, or archived sessions, that are read at once
	leaseTime = 10 * time.Minute // time after which another node can work on a namespace whose node died
)

// Options configures a Keeper.
type Options struct {
	Records  *records.DB
	Replicas *replica.Set
	Archiver *archive.Archiver
	Account  string // id of the account, for events
	Node     string // name of the process in leases
	Log      *zap.Logger
}

// Keeper applies the rules of namespaces. It may be used from any goroutine.
type Keeper struct{ o Options }

// New returns a Keeper.
func New(o Options) *Keeper { return &Keeper{o} }

// Rules returns the rules of a namespace, or records.ErrNotFound.
func (k *Keeper) Rules(ctx context.Context, namespace string) (r Rules, err error) {
	text, err := k.o.Records.Retention.Get(ctx, namespace)
	if err == nil {
		r, err = Parse([]byte(text))
	}
	return r, err
}

// All applies the rules of all namespaces, each on one node at a time.
func (k *Keeper) All(ctx context.Context) error {
	names, err := k.o.Records.Retention.Namespaces(ctx)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		_, failed := k.Run(ctx, name)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("retention of namespace %s: %w", name, failed))
		}
	}
	return err
}

// Plan returns what rules do to each session of a namespace, and when.
func (k *Keeper) Plan(ctx context.Context, namespace string, r Rules) (all []Step, err error) {
	now := time.Now()
	err = k.eachRepo(ctx, namespace, func(repo records.Repo) error {
		steps, err := k.plan(ctx, repo, r, now, func(Step) bool { return true })
		all = append(all, steps...)
		return err
	})
	return all, err
}

// Run makes the steps that are due in a namespace, and returns them. Steps that fail, for example because the session
// was changed at the same time, are left to the next run, and reported as an error. Run does nothing if another node
// applies the rules of the namespace.
func (k *Keeper) Run(ctx context.Context, namespace string) (done []Step, err error) {
	lease := "retention/" + strings.ToLower(namespace)
	acquired, err := k.o.Records.Leases.Acquire(ctx, lease, k.o.Node, leaseTime)
	if err != nil || !acquired {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, k.o.Records.Leases.Release(context.WithoutCancel(ctx), lease, k.o.Node))
	}()
	ctx, cancel := context.WithTimeout(ctx, leaseTime) // the next run continues
	defer cancel()
	r, err := k.Rules(ctx, namespace)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var failed []error
	err = k.eachRepo(ctx, namespace, func(repo records.Repo) error {
		steps, err := k.plan(ctx, repo, r, now, func(s Step) bool { return s.IsDue(now) })
		if err != nil {
			failed = append(failed, fmt.Errorf("read sessions of %s: %w", repo.Name, err))
			return ctx.Err()
		}
		made, errs := k.do(ctx, repo, steps)
		done, failed = append(done, made...), append(failed, errs...)
		return ctx.Err()
	})
	return done, errors.Join(append(failed, err)...)
}

// eachRepo calls a function with each repository of a namespace.
func (k *Keeper) eachRepo(ctx context.Context, namespace string, f func(records.Repo) error) error {
	q := records.RepoQuery{Namespace: namespace, Sort: "name", Ascending: true, Limit: page}
	for {
		repos, _, next, err := k.o.Records.Repos.List(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range repos {
			if r.Status != records.Ready || r.BaseURL != "" {
				continue // the objects of a thin repository are elsewhere
			}
			if err := f(r); err != nil {
				return err
			}
		}
		if q.After = next; next == "" {
			return nil
		}
	}
}

// plan returns what rules do to the sessions of a repository, sorted by their names: those steps for which the function
// keep returns true.
func (k *Keeper) plan(ctx context.Context, repo records.Repo, r Rules, now time.Time,
	keep func(Step) bool) ([]Step, error) {
	var all []Step
	// There can be millions of archived sessions, of which few are due.
	deleted, err := k.look(ctx, repo, func(f facts) {
		for _, s := range r.steps(f, now) {
			if keep(s) {
				all = append(all, s)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, d := range deleted {
		d.Action, d.Why = None, "the rules have no trash_after"
		if r.Trash != nil {
			text, _ := r.Trash.MarshalText()
			d.Action, d.Why, d.Due = Purge, "trash_after "+string(text), d.Due.Add(time.Duration(*r.Trash))
		} else {
			d.Due = time.Time{}
		}
		if keep(d) {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b Step) int { return strings.Compare(a.Session, b.Session) })
	return all, nil
}

// look calls the function each with the facts about each session of a repository, and returns the sessions in the
// trash, without what is done to them.
func (k *Keeper) look(ctx context.Context, repo records.Repo, each func(facts)) (trashed []Step, err error) {
	on, snap, err := k.o.Replicas.Snapshot(ctx, repo.ID)
	if err != nil {
		return nil, err
	}
	defer on.Release()
	format, err := object.ParseFormat(snap.Repo.ObjectFormat)
	if err != nil {
		return nil, err
	}
	store, err := odb.Open(filepath.Join(on.Dir, "objects"), format)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	sessions := map[string][]records.Ref{}
	var policy approval.Policy
	unreadable := false
	trash := map[string]bool{}
	for _, r := range snap.Refs {
		if name := records.SessionOf(r.Name); name != "" {
			sessions[name] = append(sessions[name], r)
		}
		if r.Name == approval.PolicyRef {
			if policy, err = readPolicy(store, format, r.ID); err != nil {
				unreadable = true
			}
		}
		if d, ok := deleted(repo.Name, r.Name); ok && !trash[d.at] {
			trash[d.at] = true
			trashed = append(trashed, d)
		}
	}
	protected := func(name string) bool { return unreadable || policy.ProtectsSession(name) }
	for _, name := range slices.Sorted(maps.Keys(sessions)) {
		refs := sessions[name]
		m, ok := metaOf(store, format, name, refs)
		if !ok {
			continue
		}
		changed := archive.Changed(store, format, m, refs)
		now := time.Now()
		m.Abandon(changed, now)
		each(facts{repo: repo.Name, name: name, state: m.Now(now), changed: changed,
			records: archive.OldestRecords(store, format, m, refs), protected: protected(name), Profile: m.Profile})
	}
	for after := ""; ; {
		rows, err := k.o.Records.Archives.List(ctx, repo.ID, after, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			i := archive.InfoOf(row)
			each(facts{repo: repo.Name, name: row.Session, state: session.Archived, bundled: true, changed: row.Changed,
				records: i.Records, protected: protected(row.Session),
				Profile: profile.Profile{Title: i.Title, Owner: i.Owner, Tags: i.Tags, Expires: i.Expires}})
			after = row.Session
		}
		if len(rows) < page {
			return trashed, nil
		}
	}
}

// readPolicy reads the policy of a repository.
func readPolicy(store *odb.Store, f object.Format, commit string) (p approval.Policy, err error) {
	id, err := object.ParseIDOf(f, commit)
	if err != nil {
		return p, err
	}
	text, err := reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}.Content(store, id)
	if err != nil {
		return p, err
	}
	return approval.ParsePolicy(text)
}

// metaOf returns the metadata of a session; false if it has none that can be read.
func metaOf(from session.Objects, f object.Format, name string, refs []records.Ref) (m session.Meta, ok bool) {
	for _, r := range refs {
		if r.Name != session.MetaRef(name) {
			continue
		}
		id, err := object.ParseIDOf(f, r.ID)
		if err == nil {
			m, err = session.MetaAt(from, f, id)
		}
		return m, err == nil && m.Session == name
	}
	return m, false
}

// deleted returns the session in the trash to which a ref belongs, with the time of the deletion as Due. A tombstone
// belongs to none.
func deleted(repo, ref string) (s Step, ok bool) {
	rest, ok := strings.CutPrefix(ref, thin.TrashPrefix)
	name, rest, _ := strings.Cut(rest, "/")
	stamp, part, _ := strings.Cut(rest, "/")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil || part == thin.Tombstone {
		return s, false
	}
	s = Step{Repo: repo, Session: name, State: "deleted", Due: time.Unix(at, 0).UTC(),
		at: thin.TrashPrefix + name + "/" + stamp + "/"}
	return s, true
}

// by describes a step for the audit log and the history of the session.
func (k *Keeper) by(repo records.Repo, s Step) archive.By {
	return archive.By{Actor: archive.Rules, Reason: s.Why, Stamp: events.Stamp{Account: k.o.Account, Time: time.Now()},
		Cause: records.Cause{Actor: archive.Rules, Method: string(s.Action),
			Target: "/" + repo.Namespace + "/" + repo.Name + "/" + s.Session}}
}

// do makes steps in a repository. It returns those that were made, and the errors of the others.
func (k *Keeper) do(ctx context.Context, repo records.Repo, steps []Step) (done []Step, failed []error) {
	results := make([]error, len(steps))
	var names []string
	var at []int // index in steps of each name
	for i, s := range steps {
		switch {
		case ctx.Err() != nil:
			results[i] = ctx.Err()
		case s.Action == Archive: // many sessions are archived together
			names, at = append(names, s.Session), append(at, i)
		default:
			results[i] = k.step(ctx, repo, s)
		}
	}
	if len(names) > 0 {
		by := k.by(repo, Step{Session: "*", Action: Archive, Why: "retention"})
		archived, err := k.o.Archiver.Archive(ctx, repo.ID, names, by)
		for i, n := range at {
			results[n] = err
			if i < len(archived) {
				results[n] = archived[i]
			}
		}
	}
	for i, s := range steps {
		if results[i] != nil {
			failed = append(failed, fmt.Errorf("%s session %s of %s: %w", s.Action, s.Session, s.Repo, results[i]))
			continue
		}
		done = append(done, s)
		k.o.Log.Info("applied retention", zap.String("repository", repo.Namespace+"/"+repo.Name),
			zap.String("session", s.Session),
			zap.String("action", string(s.Action)), zap.String("why", s.Why))
	}
	return done, failed
}

// step makes one step other than Archive.
func (k *Keeper) step(ctx context.Context, repo records.Repo, s Step) error {
	by := k.by(repo, s)
	_, err := k.o.Records.Archives.Get(ctx, repo.ID, s.Session)
	bundled := err == nil
	if err != nil && !errors.Is(err, records.ErrNotFound) {
		return err
	}
	switch {
	case s.Action == Erase:
		return k.o.Archiver.Erase(ctx, repo.ID, s.Session, bundled, s.before, by)
	case s.Action == Delete && bundled:
		return k.o.Archiver.Trash(ctx, repo.ID, s.Session, by, time.Now())
	}
	return k.change(ctx, repo.ID, s, by)
}

// change closes or deletes a session, or removes one from the trash.
func (k *Keeper) change(ctx context.Context, repoID string, s Step, by archive.By) error {
	on, snap, err := k.o.Replicas.Snapshot(ctx, repoID)
	if err != nil {
		return err
	}
	defer on.Release()
	none := strings.Repeat("0", 40)
	if snap.Repo.ObjectFormat == object.SHA256.String() {
		none = strings.Repeat("0", 64)
	}
	var refs []records.Ref
	var removals []records.RefUpdate
	for _, r := range snap.Refs {
		if s.Action == Purge && strings.HasPrefix(r.Name, s.at) ||
			s.Action != Purge && records.SessionOf(r.Name) == s.Session {
			refs = append(refs, r)
			removals = append(removals, records.RefUpdate{Name: r.Name, Old: r.ID, New: none})
		}
	}
	format, err := object.ParseFormat(snap.Repo.ObjectFormat)
	if err != nil {
		return err
	}
	if s.Action == Purge {
		return k.purge(ctx, snap, format, s, removals, by)
	}
	store, err := odb.Open(filepath.Join(on.Dir, "objects"), format)
	if err != nil {
		return err
	}
	defer store.Close()
	m, ok := metaOf(store, format, s.Session, refs)
	changed := archive.Changed(store, format, m, refs)
	// it has changed since the plan was made
	if m.Abandon(changed, time.Now()); !ok || m.InUse(time.Now()) || m.Profile.Held() {
		return records.ErrChanged
	}
	if s.Action == Close {
		return k.close(ctx, store, snap.Repo, refs, s, by, changed)
	}
	to := trash.Prefix(s.Session, time.Now())
	var updates []records.RefUpdate
	for _, r := range refs {
		updates = append(updates, records.RefUpdate{Name: to + strings.TrimPrefix(r.Name, "refs/"), Old: none, New: r.ID})
	}
	return k.o.Archiver.Push(ctx, snap.Repo, append(updates, removals...), nil, by)
}

// purge removes a session from the trash, and leaves a tombstone unless a session of the same name exists.
func (k *Keeper) purge(ctx context.Context, snap records.Snapshot, f object.Format, s Step,
	updates []records.RefUpdate, by archive.By) error {
	stone := s.at + thin.Tombstone
	if len(updates) == 0 || slices.ContainsFunc(snap.Refs, func(r records.Ref) bool {
		return r.Name == session.MetaRef(s.Session) || r.Name == stone
	}) {
		updates = slices.DeleteFunc(updates, func(u records.RefUpdate) bool { return u.Name == stone })
		return k.o.Archiver.Push(ctx, snap.Repo, updates, nil, by)
	}
	empty, err := trash.EmptyBlob(f)
	if err != nil {
		return err
	}
	p, err := k.o.Archiver.Store(ctx, f, []odb.Outgoing{empty})
	if err != nil {
		return err
	}
	updates = append(updates, records.RefUpdate{Name: stone, Old: updates[0].New, New: empty.ID.String()})
	return k.o.Archiver.Push(ctx, snap.Repo, updates, &p, by)
}

// close closes a session that has changed last at the time changed.
func (k *Keeper) close(ctx context.Context, store *odb.Store, repo records.Repo, refs []records.Ref, s Step,
	by archive.By,
	changed time.Time) error {
	i := slices.IndexFunc(refs, func(r records.Ref) bool { return r.Name == session.MetaRef(s.Session) })
	next, all, err := archive.EditMeta(store, store.Format(), refs[i].ID, func(m *session.Meta, now time.Time) error {
		m.Abandon(changed, now)
		return m.Become(session.Transition{State: session.Closed, Actor: by.Actor, Reason: by.Reason}, now)
	})
	if err != nil || len(all) == 0 {
		return err
	}
	p, err := k.o.Archiver.Store(ctx, store.Format(), all)
	if err != nil {
		return err
	}
	return k.o.Archiver.Push(ctx, repo, []records.RefUpdate{{Name: refs[i].Name, Old: refs[i].ID, New: next}}, &p, by)
}
