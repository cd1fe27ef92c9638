package records

import (
	"context"
	"time"
)

// importsSchema adds the table of imports, and the column with the commits at which the history of a repository ends if
// it was imported with a depth.
const importsSchema = `
ALTER TABLE repos ADD COLUMN shallow TEXT NOT NULL DEFAULT '';
CREATE TABLE imports (
	repo_id TEXT NOT NULL PRIMARY KEY,
	url TEXT NOT NULL,
	branch TEXT NOT NULL,
	depth BIGINT NOT NULL,
	secret TEXT NOT NULL,
	state TEXT NOT NULL,
	phase TEXT NOT NULL,
	done BIGINT NOT NULL,
	total BIGINT NOT NULL,
	bytes BIGINT NOT NULL,
	error TEXT NOT NULL,
	attempts BIGINT NOT NULL,
	started BIGINT NOT NULL,
	finished BIGINT NOT NULL,
	updated BIGINT NOT NULL,
	refs {bytes} NOT NULL
){clustered};
CREATE INDEX imports_open ON imports (updated) WHERE finished = 0;
`

// runsSchema adds the column with the id of the attempt that may change an import.
const runsSchema = `ALTER TABLE imports ADD COLUMN run TEXT NOT NULL DEFAULT '';`

// Imports stores the imports of repositories. Only the last import of a repository is kept.
type Imports struct{ db *DB }

// Import is the import of a repository from another server.
type Import struct {
	RepoID   string
	URL      string // URL without credentials
	Branch   string // the only branch to import; "" for all branches
	Depth    int    // number of commits of each branch to import; 0 for all
	Secret   string // name of the file with the credentials, which the operator maintains
	State    string
	Phase    string
	Done     int64 // number of objects that the current phase has processed
	Total    int64
	Bytes    int64 // number of bytes that were received
	Error    string
	Attempts int
	Started  time.Time
	Finished time.Time // time of the end; zero until the import has succeeded or failed
	Updated  time.Time // time of the last change; set by every method that changes the import
	Refs     []byte    // refs of the other server at the last successful import, in a format of package imports
	Run      string    // random id of the attempt, set by Take

	Namespace string // namespace of the repository, set by Open
}

const importColumns = `repo_id, url, branch, depth, secret, state, phase, done, total, bytes, error, attempts, started, finished,
	updated, refs, run`

func scanImport(row scanner) (i Import, err error) {
	err = row.Scan(importFields(&i)...)
	return i, err
}

func importFields(i *Import) []any {
	return []any{&i.RepoID, &i.URL, &i.Branch, &i.Depth, &i.Secret, &i.State, &i.Phase, &i.Done, &i.Total,
		&i.Bytes, &i.Error,
		&i.Attempts, stamp{&i.Started}, stamp{&i.Finished}, stamp{&i.Updated}, &i.Refs, &i.Run}
}

// Begin adds an import. If the repository has a finished import, Begin replaces it and keeps its Refs. It returns
// ErrExists if the repository has an import that is not finished.
func (i *Imports) Begin(ctx context.Context, m Import, cause Cause) error {
	return i.db.write(ctx, "begin import", func(t *tx) error {
		err := orNone(ErrExists)(t.exec(ctx, "INSERT INTO imports ("+importColumns+") VALUES ("+placeholders(17, 1)+`)
			ON CONFLICT (repo_id) DO UPDATE SET url = excluded.url, branch = excluded.branch, depth = excluded.depth,
			secret = excluded.secret, state = excluded.state, phase = '', done = 0, total = 0, bytes = 0, error = '', attempts = 0, run = '',
			started = excluded.started, finished = 0, updated = excluded.updated WHERE imports.finished <> 0`,
			m.RepoID, m.URL, m.Branch, m.Depth, m.Secret, m.State, "", 0, 0, 0, "", 0, t.now, time.Time{}, t.now, []byte{}, ""))
		if err != nil {
			return err
		}
		return t.log(ctx, nil, cause.entry(t, 202, ""))
	})
}

// Get returns the import of a repository.
func (i *Imports) Get(ctx context.Context, repoID string) (Import, error) {
	return readFirst(ctx, i.db, "find import", scanImport, "SELECT "+importColumns+" FROM imports WHERE repo_id = $1",
		repoID)
}

// Open returns imports that are not finished. Within each namespace they are ordered by their last change, the oldest
// first. The first imports of all namespaces precede the second ones, so that many imports of one namespace do not hide
// those of others.
func (i *Imports) Open(ctx context.Context, limit int) ([]Import, error) {
	return readList(ctx, i.db, "list imports", func(row scanner) (m Import, err error) {
		err = row.Scan(append(importFields(&m), &m.Namespace)...)
		return m, err
	}, "SELECT "+importColumns+`, namespace FROM (SELECT i.*, r.namespace,
		row_number() OVER (PARTITION BY r.namespace ORDER BY i.updated) AS turn FROM imports i JOIN repos r ON r.id = i.repo_id
		WHERE i.finished = 0) open ORDER BY turn, updated LIMIT $1`, limit)
}

// Take begins an attempt of an import, and returns the import. From then on, only this attempt can change the import:
// an earlier attempt may still run on a node that has lost its lease. Take returns ErrNotFound if the import is
// finished, or the repository was deleted.
func (i *Imports) Take(ctx context.Context, repoID string) (m Import, err error) {
	err = i.db.write(ctx, "begin attempt of import", func(t *tx) error {
		m, err = first(ctx, t, scanImport,
			"UPDATE imports SET run = $2, updated = $3 WHERE repo_id = $1 AND finished = 0 RETURNING "+
				importColumns, repoID, NewID(), t.now)
		return err
	})
	return m, err
}

// Save stores the progress of an attempt. It returns ErrNotFound if the attempt must end, because another attempt has
// begun, the import is finished, or the repository was deleted. Finish and Fail return ErrNotFound in the same cases.
func (i *Imports) Save(ctx context.Context, m Import) error {
	return i.db.write(ctx, "store progress of import", func(t *tx) error { return t.saveImport(ctx, m) })
}

func (t *tx) saveImport(ctx context.Context, m Import) error {
	return orNone(ErrNotFound)(t.exec(ctx, `UPDATE imports SET state = $2, phase = $3, done = $4, total = $5, bytes = $6,
		error = $7, attempts = $8, finished = $9, refs = $10, updated = $11 WHERE repo_id = $1 AND run = $12 AND finished = 0`,
		m.RepoID, m.State, m.Phase, m.Done, m.Total, m.Bytes, m.Error, m.Attempts, m.Finished,
		append([]byte{}, m.Refs...), t.now,
		m.Run))
}

// Imported is the result of a successful import.
type Imported struct {
	Import        Import
	Push          Push // Push contains the updates of refs; its TokenID is ""
	Events        []Event
	DefaultBranch string // new default branch; "" for no change
	Shallow       string
}

// Finish makes the result of an import visible, in one transaction. Updates of refs that have changed since the import
// began fail, with an error in the result.
func (i *Imports) Finish(ctx context.Context, m Imported) (results []error, err error) {
	err = i.db.write(ctx, "finish import", func(t *tx) error {
		if _, err := t.lockRepo(ctx, m.Push.RepoID); err != nil {
			return err
		}
		if err := t.saveImport(ctx, m.Import); err != nil {
			return err
		}
		_, err := t.exec(ctx,
			`UPDATE repos SET status = $2, shallow = $3, default_branch = CASE WHEN $4 = '' THEN default_branch ELSE $4 END,
			updated = $5, {grow} WHERE id = $1`, m.Push.RepoID, string(Ready), m.Shallow, m.DefaultBranch, t.now)
		if err != nil {
			return err
		}
		if results, err = t.push(ctx, m.Push); err != nil {
			return err
		}
		return t.log(ctx, m.Events, nil)
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// Fail ends an import that has failed. The repository becomes ready, and its refs stay unchanged.
func (i *Imports) Fail(ctx context.Context, m Import) error {
	return i.db.write(ctx, "end import", func(t *tx) error {
		if err := t.saveImport(ctx, m); err != nil {
			return err
		}
		return t.ready(ctx, m.RepoID)
	})
}

// ready changes the status of a repository from importing to ready.
func (t *tx) ready(ctx context.Context, repoID string) error {
	_, err := t.exec(ctx, "UPDATE repos SET status = $2, updated = $4 WHERE id = $1 AND status = $3",
		repoID, string(Ready), string(Importing), t.now)
	return err
}

// Abandoned adds a failed import to each repository that was created for an import earlier than the time before and has
// no unfinished import, because the process that created it died. state and cause are those of the failed import.
func (i *Imports) Abandoned(ctx context.Context, before time.Time, state, cause string) error {
	return i.db.write(ctx, "end abandoned imports", func(t *tx) error {
		repos, err := list(ctx, t, scanRepo, "SELECT "+repoColumns+
			` FROM repos WHERE status = $1 AND deleted = 0 AND created < $2
			AND NOT EXISTS (SELECT 1 FROM imports m WHERE m.repo_id = repos.id AND m.finished = 0)`, string(Importing), before)
		if err != nil {
			return err
		}
		for _, r := range repos {
			rows, err := t.exec(ctx, "INSERT INTO imports ("+importColumns+") VALUES ("+placeholders(17, 1)+`)
				ON CONFLICT (repo_id) DO UPDATE SET state = excluded.state, phase = '', error = excluded.error, finished = excluded.finished,
				updated = excluded.updated WHERE imports.finished <> 0`,
				r.ID, r.Source, "", 0, "", state, "", 0, 0, 0, cause, 0, r.Created, t.now, t.now, []byte{}, "")
			if err != nil {
				return err
			}
			if rows == 0 {
				continue // an import has begun in the meantime
			}
			if err := t.ready(ctx, r.ID); err != nil {
				return err
			}
		}
		return nil
	})
}
