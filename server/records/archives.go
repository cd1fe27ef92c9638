package records

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// archivesSchema adds the tables of archived sessions, and of the retention of namespaces.
const archivesSchema = `
CREATE TABLE archives (
	repo BIGINT NOT NULL,
	session {folded} NOT NULL,
	pack BIGINT NOT NULL,
	bytes BIGINT NOT NULL,
	archived BIGINT NOT NULL,
	changed BIGINT NOT NULL,
	info TEXT NOT NULL,
	PRIMARY KEY (repo, session)
){clustered};
CREATE TABLE retention (namespace {folded} NOT NULL PRIMARY KEY, rules TEXT NOT NULL, updated BIGINT NOT NULL);
`

// BundleExtension is the extension of the file of an archived session. The file has the record of a pack, so that it is
// found if a process dies, but no repository lists it.
const BundleExtension = ".bundle"

// basePrefix is the prefix of refs that keep the base commits of the archived sessions of a repository. The name of a
// session cannot begin with an underscore.
const basePrefix = "refs/afs/archived/_/"

// Archives are the archived sessions. The refs of an archived session are in a git bundle in the object store, and not
// in the repository.
type Archives struct{ db *DB }

// Archive is an archived session.
type Archive struct {
	Session  string
	Pack     Pack      // record of the bundle
	Archived time.Time // time at which the session was archived
	Changed  time.Time // time of the last change of the session
	Info     string    // further data about the session, in a format of package archive
}

// ArchivedError is the error of an update that would create a ref of an archived session.
type ArchivedError struct{ Session string }

func (e ArchivedError) Error() string {
	return fmt.Sprintf("session %s is archived: artifactfs session reopen brings it back", e.Session)
}

// sessionKinds are the kinds of refs, refs/afs/KIND/SESSION and refs/afs/KIND/SESSION/..., that belong to one session.
var sessionKinds = []string{"adopted", "ann", "approvals", "base", "carried", "diverged", "facts", "ground", "j",
	"kept", "meta", "pin",
	"restored", "tags", "thin", "transcript"}

// SessionOf returns the name of the session to which a ref with this name belongs. It returns "" for all other refs,
// including refs of deleted sessions.
func SessionOf(ref string) string {
	kind, rest := "", ""
	if below, ok := strings.CutPrefix(ref, "refs/afs/"); ok {
		kind, rest, _ = strings.Cut(below, "/")
		if !slices.Contains(sessionKinds, kind) {
			return ""
		}
	} else if below, ok := strings.CutPrefix(ref, "refs/heads/afs/"); ok {
		rest = below
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// IsBase reports whether a ref keeps a base commit of archived sessions.
func IsBase(ref string) bool { return strings.HasPrefix(ref, basePrefix) }

// Archiving is a session that is to be archived.
type Archiving struct {
	Archive
	Refs  []Ref    // refs of the session in the bundle, sorted by name
	Bases []string // commits that the repository keeps because objects of the bundle are based on them
}

// Put archives sessions of a repository: it removes their refs and adds refs for their bases. The bundles must be
// stored already. version is the version of the repository in which the bundles were made. The result contains
// ErrChanged for each session whose refs have changed since then; such a session is not archived. events is called
// within the transaction, and must not block.
func (a *Archives) Put(ctx context.Context, repoID string, version Version, all []Archiving, cause Cause,
	events func(done []RefUpdate) []Event) (results []error, err error) {
	err = a.db.write(ctx, "archive sessions of repository "+repoID, func(t *tx) error {
		results = make([]error, len(all))
		repo, err := t.lockRepo(ctx, repoID)
		if err != nil {
			return err
		}
		if err := repo.check(version); err != nil {
			return err
		}
		refs, err := t.allRefs(ctx, repo.refs)
		if err != nil {
			return err
		}
		present := map[string][]Ref{}
		for _, r := range refs {
			if name := SessionOf(r.Name); name != "" {
				present[name] = append(present[name], r)
			}
		}
		bases := map[string]bool{}
		var names []string
		var done []RefUpdate
		for i, s := range all {
			if !slices.Equal(present[s.Session], s.Refs) {
				results[i] = ErrChanged
				continue
			}
			if err := t.putArchive(ctx, repo.key, s.Archive); err != nil {
				return err
			}
			for _, r := range s.Refs {
				names = append(names, r.Name)
				done = append(done, RefUpdate{r.Name, r.ID, strings.Repeat("0", len(r.ID))})
			}
			for _, id := range s.Bases {
				bases[id] = true
			}
		}
		if len(names) == 0 {
			return nil
		}
		if err := t.removeRefs(ctx, repo.refs, names); err != nil {
			return err
		}
		var kept []Ref
		for id := range bases {
			kept = append(kept, Ref{basePrefix + id, id})
		}
		if err := t.putRefs(ctx, repo.key, kept); err != nil {
			return err
		}
		return t.logArchive(ctx, repo, events(done), cause, "archived", done)
	})
	return results, err
}

// putArchive adds or replaces the row of an archived session.
func (t *tx) putArchive(ctx context.Context, repo int64, s Archive) error {
	keys, err := list(ctx, t, scanInt, "UPDATE packs SET idle_since = 0 WHERE id = $1 AND idle_since <> -1 RETURNING pack",
		s.Pack.ID)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return fmt.Errorf("%w: bundle %s was removed because no session used it", ErrUnavailable, s.Pack.ID)
	}
	archived := s.Archived
	if archived.IsZero() {
		archived = t.now
	}
	_, err = t.exec(ctx,
		`INSERT INTO archives (repo, session, pack, bytes, archived, changed, info) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (repo, session) DO UPDATE SET pack = excluded.pack, bytes = excluded.bytes, info = excluded.info`,
		repo, s.Session, keys[0], s.Pack.Bytes, archived, s.Changed, s.Info)
	return err
}

// logArchive increments the generation of a repository, and writes the events and the audit entry of a change of its
// archived sessions.
func (t *tx) logArchive(ctx context.Context, repo lockedRepo, events []Event, cause Cause, what string,
	done []RefUpdate) error {
	if _, err := t.exec(ctx, "UPDATE repos SET {grow}, updated = $2 WHERE repo = $1", repo.key, t.now); err != nil {
		return err
	}
	return t.log(ctx, events, cause.entry(t, 200, join(what, describe(done, make([]error, len(done))))))
}

// Restoring describes an archived session that becomes a session of its repository again.
type Restoring struct {
	RepoID  string
	Session string
	Bundle  string // id of the bundle that was read
	// Version is the version of the repository in which the objects were checked.
	Version Version
	Refs    []Ref  // refs to create
	Packs   []Pack // stored packs with the objects of the bundle
	Cause   Cause
	Events  func(done []RefUpdate) []Event // called within the transaction; it must not block
}

// Take restores an archived session in one transaction: it creates the refs, adds the packs, and removes the row. It
// returns ErrNotFound if the session is not archived, ErrChanged if it has another bundle, and ErrExists if one of the
// refs exists or cannot be created.
func (a *Archives) Take(ctx context.Context, r Restoring) error {
	return a.db.write(ctx, "reopen archived session "+r.Session, func(t *tx) error {
		repo, err := t.lockRepo(ctx, r.RepoID)
		if err != nil {
			return err
		}
		if err := repo.check(r.Version); err != nil {
			return err
		}
		if err := t.dropArchive(ctx, repo.key, r.Session, r.Bundle); err != nil {
			return err
		}
		var updates []RefUpdate
		for _, ref := range r.Refs {
			updates = append(updates, RefUpdate{ref.Name, strings.Repeat("0", len(ref.ID)), ref.ID})
		}
		refs, err := t.affected(ctx, repo.refs, updates, nil)
		if err != nil {
			return err
		}
		if results := refs.apply(updates, true); len(refs.done) != len(updates) {
			i := slices.IndexFunc(results, func(err error) bool { return err != nil && err != ErrAtomic })
			return fmt.Errorf("%w: %s: %w", ErrExists, updates[max(i, 0)].Name, results[max(i, 0)])
		}
		if err := t.putRefs(ctx, repo.key, refs.written()); err != nil {
			return err
		}
		for _, p := range r.Packs {
			if err := t.link(ctx, repo.key, p); err != nil {
				return err
			}
		}
		if err := t.dropBases(ctx, repo); err != nil {
			return err
		}
		return t.logArchive(ctx, repo, r.Events(refs.done), r.Cause, "reopened session "+r.Session, refs.done)
	})
}

// dropArchive removes the row of an archived session, and marks its bundle as unused.
func (t *tx) dropArchive(ctx context.Context, repo int64, session, bundle string) error {
	rows, err := list(ctx, t, scanText,
		"SELECT p.id FROM archives a JOIN packs p ON p.pack = a.pack WHERE a.repo = $1 AND a.session = $2",
		repo, session)
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return ErrNotFound
	case rows[0] != bundle:
		return ErrChanged
	}
	if _, err := t.exec(ctx, "DELETE FROM archives WHERE repo = $1 AND session = $2", repo, session); err != nil {
		return err
	}
	_, err = t.exec(ctx, "UPDATE packs SET idle_since = $2 WHERE id = $1", bundle, t.now)
	return err
}

// countArchives returns 1 if a repository has archived sessions, and 0 otherwise.
func (t *tx) countArchives(ctx context.Context, repo int64) (int64, error) {
	return t.count(ctx, "SELECT count(*) FROM (SELECT 1 FROM archives WHERE repo = $1 LIMIT 1) a", repo)
}

// dropBases removes the refs for base commits of archived sessions if the repository has no archived session.
func (t *tx) dropBases(ctx context.Context, repo lockedRepo) error {
	if n, err := t.countArchives(ctx, repo.key); err != nil || n > 0 {
		return err
	}
	bases, err := t.refs(ctx, repo.refs, " WHERE v.name > $3 AND v.name < $4", []byte(basePrefix), []byte(basePrefix+"~"))
	if err != nil || len(bases) == 0 {
		return err
	}
	names := make([]string, len(bases))
	for i, r := range bases {
		names[i] = r.Name
	}
	slices.Sort(names)
	return t.removeRefs(ctx, repo.refs, names)
}

// Replace replaces the bundle of an archived session. It returns ErrChanged if the present bundle of the session is not
// the bundle old.
func (a *Archives) Replace(ctx context.Context, repoID, old string, s Archive, cause Cause) error {
	return a.db.write(ctx, "replace archived session "+s.Session, func(t *tx) error {
		repo, err := t.lockRepo(ctx, repoID)
		if err != nil {
			return err
		}
		if err := t.dropArchive(ctx, repo.key, s.Session, old); err != nil {
			return err
		}
		if err := t.putArchive(ctx, repo.key, s); err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 200, "replaced the bundle of archived session "+s.Session))
	})
}

const archiveColumns = "a.session, a.archived, a.changed, a.info, " + packColumns

func scanArchive(row scanner) (s Archive, err error) {
	var extensions string
	p := &s.Pack
	err = row.Scan(&s.Session, stamp{&s.Archived}, stamp{&s.Changed}, &s.Info, &p.ID, &p.Hash, &extensions,
		&p.Bytes, &p.Objects,
		stamp{&p.Created})
	p.Extensions = strings.Fields(extensions)
	return s, err
}

// Get returns an archived session.
func (a *Archives) Get(ctx context.Context, repoID, session string) (Archive, error) {
	return readFirst(ctx, a.db, "find archived session "+session, scanArchive, "SELECT "+archiveColumns+` FROM repos r
		JOIN archives a ON a.repo = r.repo JOIN packs p ON p.pack = a.pack WHERE r.id = $1 AND r.deleted = 0 AND a.session = $2`, repoID, session)
}

// List returns up to limit archived sessions of a repository whose names are greater than after, in the order of their
// names.
func (a *Archives) List(ctx context.Context, repoID, after string, limit int) ([]Archive, error) {
	return readList(ctx, a.db, "list archived sessions", scanArchive, "SELECT "+archiveColumns+` FROM repos r
		JOIN archives a ON a.repo = r.repo JOIN packs p ON p.pack = a.pack
		WHERE r.id = $1 AND r.deleted = 0 AND a.session > $2 ORDER BY a.session LIMIT $3`, repoID, after, limit)
}

// refuseArchived returns a list with an element for each update: an error if the update would create a ref of an
// archived session, otherwise nil.
func (t *tx) refuseArchived(ctx context.Context, repo int64, updates []RefUpdate) ([]error, error) {
	results := make([]error, len(updates))
	creates := func(u RefUpdate) bool { return u.Creates() && !u.Removes() && SessionOf(u.Name) != "" }
	if !slices.ContainsFunc(updates, creates) {
		return results, nil
	}
	// Most repositories have no archived session, and a push can have refs of many sessions.
	if n, err := t.countArchives(ctx, repo); n == 0 || err != nil {
		return results, err
	}
	known := map[string]bool{}
	for i, u := range updates {
		if !creates(u) {
			continue
		}
		name := SessionOf(u.Name)
		archived, looked := known[name]
		if !looked {
			n, err := t.count(ctx, "SELECT count(*) FROM archives WHERE repo = $1 AND session = $2", repo, name)
			if err != nil {
				return nil, err
			}
			archived = n > 0
			known[name] = archived
		}
		if archived {
			results[i] = ArchivedError{name}
		}
	}
	return results, nil
}
