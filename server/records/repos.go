package records

import (
	"context"
	"fmt"
	"time"
)

// Repos stores the repositories with their refs. The case of names is ignored when names are looked up and compared.
type Repos struct{ db *DB }

// tombstone is the time for which FindDeleted finds a deleted repository.
const tombstone = 30 * 24 * time.Hour

// Creation is a new repository with the token, refs and events that are created in the same transaction.
type Creation struct {
	Repo   Repo
	Token  *Token // token to create; nil: none
	Events []Event
	Cause  Cause
	Parent string // id of the parent, whose packs a fork shares; "" if the repository is not a fork
	Refs   []Ref  // refs of the fork; only used if All is false
	All    bool   // whether the fork gets all refs of the parent
	// Version is the version of the parent at which the objects of Refs were found. Create returns ErrCollected if
	// garbage of the parent was collected since then.
	Version Version
}

const repoColumns = `id, namespace, name, description, default_branch, object_format, read_only, status, source, base_url, base_commit,
	created, updated, last_push, generation, collections, deleted, shallow, substr(stamps, 1, 12)`

func scanRepo(row scanner) (r Repo, err error) {
	err = row.Scan(repoFields(&r)...)
	return r, err
}

// repoFields are the fields into which repoColumns are scanned.
func repoFields(r *Repo) []any {
	return []any{&r.ID, &r.Namespace, &r.Name, &r.Description, &r.DefaultBranch, &r.ObjectFormat, &r.ReadOnly,
		&r.Status, &r.Source,
		&r.BaseURL, &r.BaseCommit, stamp{&r.Created}, stamp{&r.Updated}, stamp{&r.LastPush}, &r.Generation, &r.Collections,
		stamp{&r.Deleted}, &r.Shallow, &r.Stamp}
}

// Create creates a repository, and its namespace if that does not exist. It returns ErrExists if a repository has the
// name already, and ErrNotFound if the parent does not exist. Empty times, status, branch and object format get default
// values.
func (r *Repos) Create(ctx context.Context, c Creation) error {
	return r.db.write(ctx, "create repository "+c.Repo.Namespace+"/"+c.Repo.Name, func(t *tx) error {
		return t.createRepo(ctx, c)
	})
}

func (t *tx) createRepo(ctx context.Context, c Creation) error {
	repo := c.Repo
	if repo.Created.IsZero() {
		repo.Created = t.now
	}
	if repo.Updated.IsZero() {
		repo.Updated = repo.Created
	}
	if repo.Status == "" {
		repo.Status = Ready
	}
	if repo.DefaultBranch == "" {
		repo.DefaultBranch = "main"
	}
	if repo.ObjectFormat == "" {
		repo.ObjectFormat = "sha1"
	}
	namespace, err := t.lockNamespace(ctx, repo.Namespace)
	if err != nil {
		return err
	}
	var parent refRows
	var shallow string
	if c.Parent != "" {
		if parent, shallow, err = t.lockParent(ctx, c.Parent, c.All); err != nil {
			return fmt.Errorf("find parent %s: %w", c.Parent, err)
		}
		if !c.All { // the refs and packs of the parent cannot change here, because lockParent has locked it
			var h history
			if err := t.one(ctx, h.fields(), "SELECT "+historyColumns+" FROM repos WHERE repo = $1", parent.own); err != nil {
				return err
			}
			if err := h.check(c.Version); err != nil {
				return err
			}
		}
	}
	var shared int64
	if c.All {
		shared = parent.shared
	}
	keys, err := list(ctx, t, scanInt,
		`INSERT INTO repos (id, namespace, name, namespace_folded, folded, description, default_branch,
		object_format, read_only, status, source, base_url, base_commit, created, updated, last_push, shallow, shared, generation,
		stamps, collections, deleted)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 1, {stamp}, 0, 0)
		ON CONFLICT DO NOTHING RETURNING repo`,
		repo.ID, namespace, repo.Name, fold(namespace), fold(repo.Name), repo.Description, repo.DefaultBranch,
		repo.ObjectFormat,
		repo.ReadOnly, string(repo.Status), repo.Source, repo.BaseURL, repo.BaseCommit, repo.Created, repo.Updated,
		repo.LastPush, shallow,
		shared)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return ErrExists
	}
	if c.Parent != "" {
		if _, err := t.exec(ctx, "INSERT INTO links (repo, pack) SELECT $1, pack FROM links WHERE repo = $2", keys[0],
			parent.own); err != nil {
			return err
		}
	}
	switch {
	case c.Parent != "" && c.All:
		_, err = t.exec(ctx, "INSERT INTO refs (repo, name, id) SELECT $1, name, id FROM refs WHERE repo = $2 ORDER BY name",
			keys[0], parent.own)
	default:
		err = t.putRefs(ctx, keys[0], c.Refs)
	}
	if err != nil {
		return err
	}
	if c.Token != nil {
		if err := t.addToken(ctx, *c.Token); err != nil {
			return err
		}
	}
	return t.log(ctx, c.Events, c.Cause.entry(t, 201, ""))
}

func scanInt(row scanner) (n int64, err error) {
	err = row.Scan(&n)
	return n, err
}

// Get returns a repository that is not deleted.
func (r *Repos) Get(ctx context.Context, namespace, name string) (Repo, error) {
	return readFirst(ctx, r.db, "find repository "+namespace+"/"+name, scanRepo,
		"SELECT "+repoColumns+" FROM repos WHERE namespace_folded = $1 AND folded = $2 AND deleted = 0",
		fold(namespace), fold(name))
}

// ByID returns a repository that is not deleted.
func (r *Repos) ByID(ctx context.Context, id string) (Repo, error) {
	return readFirst(ctx, r.db, "find repository "+id, scanRepo,
		"SELECT "+repoColumns+" FROM repos WHERE id = $1 AND deleted = 0", id)
}

// FindDeleted returns the repository with the given name that was deleted last, if it was deleted within the last 30
// days.
func (r *Repos) FindDeleted(ctx context.Context, namespace, name string) (Repo, error) {
	return readFirst(ctx, r.db, "find deleted repository "+namespace+"/"+name, scanRepo, "SELECT "+repoColumns+` FROM repos
			WHERE namespace_folded = $1 AND folded = $2 AND deleted <> 0 AND deleted > $3 ORDER BY deleted DESC LIMIT 1`,
		fold(namespace), fold(name), r.db.now().Add(-tombstone))
}

// Delete marks a repository as deleted, removes its refs and its list of packs, and revokes its tokens.
func (r *Repos) Delete(ctx context.Context, id string, events []Event, cause Cause) error {
	return r.db.write(ctx, "delete repository "+id, func(t *tx) error {
		repo, err := t.lockRepo(ctx, id)
		if err != nil {
			return err
		}
		if t.dialect.parallel {
			// Lock the packs of the repository first. Forks have packs in common; because all transactions lock packs
			// in the same order, two that delete forks do not wait for each other.
			if err := t.each(ctx, func(scanner) error { return nil },
				"SELECT pack FROM packs WHERE pack IN (SELECT pack FROM links WHERE repo = $1) ORDER BY pack{update}",
				repo.key); err != nil {
				return err
			}
		}
		for _, query := range []string{
			"UPDATE repos SET deleted = $2, updated = $2, shared = 0, {grow} WHERE repo = $1",
			`UPDATE packs SET idle_since = $2 WHERE pack IN (SELECT pack FROM links WHERE repo = $1
				UNION SELECT pack FROM archives WHERE repo = $1)`,
		} {
			if _, err := t.exec(ctx, query, repo.key, t.now); err != nil {
				return err
			}
		}
		for _, query := range []string{"DELETE FROM refs WHERE repo = $1", "DELETE FROM changed_refs WHERE repo = $1",
			"DELETE FROM links WHERE repo = $1", "DELETE FROM archives WHERE repo = $1"} {
			if _, err := t.exec(ctx, query, repo.key); err != nil {
				return err
			}
		}
		if _, err := t.exec(ctx, "DELETE FROM imports WHERE repo_id = $1", id); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "UPDATE tokens SET revoked = $2 WHERE repo_id = $1 AND revoked = 0", id, t.now); err != nil {
			return err
		}
		return t.log(ctx, events, cause.entry(t, 202, ""))
	})
}

// SetStatus sets the status of a repository. It is called when an import begins or ends.
func (r *Repos) SetStatus(ctx context.Context, id string, s Status) error {
	return r.set(ctx, "set status of repository "+id, "status = $2", id, string(s))
}

// SetDefaultBranch sets the branch to which HEAD points.
func (r *Repos) SetDefaultBranch(ctx context.Context, id, branch string) error {
	return r.set(ctx, "set default branch of repository "+id, "default_branch = $2, {grow}", id, branch)
}

func (r *Repos) set(ctx context.Context, what, assignment, id, value string) error {
	return r.db.write(ctx, what, func(t *tx) error {
		return orNone(ErrNotFound)(t.exec(ctx, "UPDATE repos SET updated = $3, "+assignment+" WHERE id = $1 AND deleted = 0",
			id, value, t.now))
	})
}

// Snapshot is a repository at one moment.
type Snapshot struct {
	Repo  Repo
	Refs  []Ref // all refs, sorted by name
	Packs []Pack
	// Changed contains the refs that were changed since the version that was passed to SnapshotSince, sorted by name. A
	// removed ref has an empty ID.
	Changed []Ref
}

// Snapshot returns a repository with its refs and packs.
func (r *Repos) Snapshot(ctx context.Context, id string) (s Snapshot, err error) {
	err = r.snapshot(ctx, id, &s, func(*tx, refRows) (bool, error) { return false, nil })
	return s, err
}

// snapshot reads a snapshot. The function changed sets the field Changed and returns true, or returns false if all refs
// must be read.
func (r *Repos) snapshot(ctx context.Context, id string, s *Snapshot,
	changed func(t *tx, refs refRows) (bool, error)) error {
	return r.db.read(ctx, "read repository "+id, func(t *tx) error {
		var refs refRows
		if err := t.one(ctx, append([]any{&refs.own, &refs.shared}, repoFields(&s.Repo)...),
			"SELECT repo, shared, "+repoColumns+
				" FROM repos WHERE id = $1 AND deleted = 0", id); err != nil {
			return err
		}
		known, err := changed(t, refs)
		if err == nil && !known {
			s.Refs, err = t.allRefs(ctx, refs)
		}
		if err != nil {
			return err
		}
		s.Packs, err = list(ctx, t, scanPack, "SELECT "+packColumns+` FROM links l JOIN packs p ON p.pack = l.pack
			WHERE l.repo = $1 ORDER BY l.pack`, refs.own)
		return err
	})
}

// Refs returns the refs of a repository, sorted by name.
func (r *Repos) Refs(ctx context.Context, id string) (refs []Ref, err error) {
	err = r.readRefs(ctx, id, func(t *tx, rows refRows) error {
		refs, err = t.allRefs(ctx, rows)
		return err
	})
	return refs, err
}

// CountRefs returns the number of refs of a repository.
func (r *Repos) CountRefs(ctx context.Context, id string) (n int64, err error) {
	err = r.readRefs(ctx, id, func(t *tx, rows refRows) error {
		// Of the rows of the repository, which are few, some hide refs of the shared set.
		n, err = t.count(ctx, `SELECT (SELECT count(*) FROM refs WHERE repo = $1 AND length(id) > 0)
			+ (SELECT count(*) FROM refs WHERE repo = $2)
			- (SELECT count(*) FROM refs o JOIN refs s ON s.repo = $2 AND s.name = o.name WHERE o.repo = $1)`, rows.own,
			-rows.shared)
		return err
	})
	return n, err
}

// Ref returns the id of a ref of a repository, or "" if the ref does not exist.
func (r *Repos) Ref(ctx context.Context, id, name string) (object string, err error) {
	err = r.readRefs(ctx, id, func(t *tx, rows refRows) error {
		found, err := t.namedRefs(ctx, rows, []string{name})
		if len(found) > 0 {
			object = found[0].ID
		}
		return err
	})
	return object, err
}

// Names is a range of names of refs: From is included, To is not.
type Names struct{ From, To string }

// Below returns the range of the names that begin with a prefix, which must end with a slash.
func Below(prefix string) Names { return Names{prefix, prefix[:len(prefix)-1] + "0"} } // "0" is the character after "/"

// HasRefs reports whether a repository has refs with names in one of the ranges.
func (r *Repos) HasRefs(ctx context.Context, id string, ranges ...Names) (has bool, err error) {
	err = r.readRefs(ctx, id, func(t *tx, rows refRows) error {
		for _, n := range ranges {
			found, err := t.refs(ctx, rows, " WHERE v.name >= $3 AND v.name < $4 LIMIT 1", []byte(n.From), []byte(n.To))
			if has = len(found) > 0; has || err != nil {
				return err
			}
		}
		return nil
	})
	return has, err
}

// readRefs calls f with a transaction in which refs of a repository can be read.
func (r *Repos) readRefs(ctx context.Context, id string, f func(*tx, refRows) error) error {
	return r.db.read(ctx, "read refs of repository "+id, func(t *tx) error {
		var rows refRows
		if err := t.one(ctx, []any{&rows.own, &rows.shared}, "SELECT repo, shared FROM repos WHERE id = $1 AND deleted = 0",
			id); err != nil {
			return err
		}
		return f(t, rows)
	})
}

// Size returns the total size, in bytes, of the packs that only this repository lists, with its archived sessions, and
// of the packs that it shares with other repositories.
func (r *Repos) Size(ctx context.Context, id string) (own, shared int64, err error) {
	err = r.db.single(ctx, "measure repository "+id, func(t *tx) error {
		return t.one(ctx, []any{&own, &shared}, `SELECT
			CAST(COALESCE(SUM(CASE WHEN s.others THEN 0 ELSE s.bytes END), 0) + (SELECT COALESCE(SUM(a.bytes), 0) FROM repos r
				JOIN archives a ON a.repo = r.repo WHERE r.id = $1) AS BIGINT),
			CAST(COALESCE(SUM(CASE WHEN s.others THEN s.bytes ELSE 0 END), 0) AS BIGINT)
			FROM (SELECT p.bytes, EXISTS (SELECT 1 FROM links o WHERE o.pack = l.pack AND o.repo <> l.repo) AS others
				FROM repos r JOIN links l ON l.repo = r.repo JOIN packs p ON p.pack = l.pack WHERE r.id = $1) s`, id)
	})
	return own, shared, err
}

// Crowded returns ids of repositories that have at least the given number of unshared packs. The repository with the
// most packs is first.
func (r *Repos) Crowded(ctx context.Context, packs, limit int) ([]string, error) {
	// The inner SELECT counts all packs of each repository, for which the database reads only an index. So the unshared
	// packs are counted for few repositories only.
	return readList(ctx, r.db, "find repositories with many packs", scanText,
		`SELECT r.id FROM (SELECT repo FROM links GROUP BY repo HAVING count(*) >= $1) c
			JOIN links l ON l.repo = c.repo JOIN repos r ON r.repo = c.repo
			WHERE NOT EXISTS (SELECT 1 FROM links o WHERE o.pack = l.pack AND o.repo <> l.repo)
			GROUP BY r.id HAVING count(*) >= $1 ORDER BY count(*) DESC, r.id LIMIT $2`, packs, limit)
}

func scanText(row scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// lockedRepo contains the columns of a locked repository that a transaction needs to change it.
type lockedRepo struct {
	key       int64
	refs      refRows
	namespace string
	name      string
	history
}

// lockRepo locks a repository that is not deleted, and returns it. Until the transaction ends, all other transactions
// that change the repository or copy its packs must wait.
func (t *tx) lockRepo(ctx context.Context, id string) (r lockedRepo, err error) {
	err = t.one(ctx, append([]any{&r.key, &r.refs.shared, &r.namespace, &r.name}, r.fields()...),
		"SELECT repo, shared, namespace, name, "+historyColumns+" FROM repos WHERE id = $1 AND deleted = 0{update}", id)
	r.refs.own = r.key
	return r, err
}
