package records

import (
	"context"
	"time"
)

// DB is a database of records. Its fields group the methods by the kind of record.
type DB struct {
	Namespaces *Namespaces
	Repos      *Repos
	Packs      *Packs
	Tokens     *Tokens
	Events     *Events
	Audit      *Audit
	Usage      *Usage
	Leases     *Leases
	Webhooks   *Webhooks
	Settings   *Settings
}

type (
	Namespaces struct{}
	Repos      struct{}
	Packs      struct{}
	Tokens     struct{}
	Events     struct{}
	Audit      struct{}
	Usage      struct{}
	Leases     struct{}
	Webhooks   struct{}
	Settings   struct{}
)

// Open opens the database at url: sqlite:PATH or postgres://... It creates missing tables, and upgrades those of older versions.
func Open(ctx context.Context, url string) (*DB, error) { panic("not written yet") }

func (db *DB) Close() error { panic("not written yet") }

// Ping returns nil if the database answers, and ErrUnavailable otherwise.
func (db *DB) Ping(ctx context.Context) error { panic("not written yet") }

// NewID returns a random id of 26 characters that sorts by its time (a ULID).
func NewID() string { panic("not written yet") }

// ---- namespaces

func (n *Namespaces) Create(ctx context.Context, ns Namespace, cause Cause) error {
	panic("not written yet")
}
func (n *Namespaces) Get(ctx context.Context, name string) (Namespace, error) {
	panic("not written yet")
}

// List returns up to limit namespaces whose names follow after, in the order of names, and the number of all.
func (n *Namespaces) List(ctx context.Context, after string, limit int) ([]Namespace, int, error) {
	panic("not written yet")
}

// Delete removes an empty namespace; ErrNotEmpty otherwise.
func (n *Namespaces) Delete(ctx context.Context, name string, cause Cause) error {
	panic("not written yet")
}

// ---- repositories

// Creation is a new repository with all that becomes visible with it.
type Creation struct {
	Repo   Repo
	Token  *Token // nil for none
	Events []Event
	Cause  Cause
	Parent string // id of the forked repository, whose packs the new one shares; "" for none
	Refs   []Ref  // refs of a fork
	All    bool   // the fork has all refs of the parent; Refs is ignored
}

// Create creates a repository, and its namespace if that is missing.
func (r *Repos) Create(ctx context.Context, c Creation) error { panic("not written yet") }
func (r *Repos) Get(ctx context.Context, namespace, name string) (Repo, error) {
	panic("not written yet")
}
func (r *Repos) ByID(ctx context.Context, id string) (Repo, error) { panic("not written yet") }

// FindDeleted returns the repository of that name that was deleted last, for 30 days.
func (r *Repos) FindDeleted(ctx context.Context, namespace, name string) (Repo, error) {
	panic("not written yet")
}

// RepoQuery selects a page of a list of repositories.
type RepoQuery struct {
	Namespace string
	Search    string // part of the name, without regard to case
	Sort      string // created_at, updated_at, last_push_at or name
	Ascending bool
	Limit     int
	Offset    int    // of the first repository, if After is ""
	After     string // cursor from an earlier answer
}

// List returns a page, the number of all repositories that match, and the cursor of the next page, "" after the last one.
func (r *Repos) List(ctx context.Context, q RepoQuery) (page []Repo, total int, next string, err error) {
	panic("not written yet")
}

// Delete marks a repository as deleted and removes its refs and its list of packs. Its tokens are revoked.
func (r *Repos) Delete(ctx context.Context, id string, events []Event, cause Cause) error {
	panic("not written yet")
}

// SetStatus ends or begins an import.
func (r *Repos) SetStatus(ctx context.Context, id string, s Status) error { panic("not written yet") }

// SetDefaultBranch sets the branch to which HEAD points.
func (r *Repos) SetDefaultBranch(ctx context.Context, id, branch string) error {
	panic("not written yet")
}

// Snapshot is a repository at one moment.
type Snapshot struct {
	Repo  Repo
	Refs  []Ref // sorted by name
	Packs []Pack
}

func (r *Repos) Snapshot(ctx context.Context, id string) (Snapshot, error) { panic("not written yet") }
func (r *Repos) Refs(ctx context.Context, id string) ([]Ref, error)        { panic("not written yet") }

// Push makes the updates visible. The result has an error for each update that failed, with a text for the user of git, such as
// "stale ref"; the error of Push means that no update was made.
func (r *Repos) Push(ctx context.Context, p Push) (results []error, err error) {
	panic("not written yet")
}

// Size returns the bytes of the packs that only this repository has, and of those that it shares with others.
func (r *Repos) Size(ctx context.Context, id string) (own, shared int64, err error) {
	panic("not written yet")
}

// Crowded returns ids of repositories with at least packs packs that are not shared, the most crowded first.
func (r *Repos) Crowded(ctx context.Context, packs, limit int) ([]string, error) {
	panic("not written yet")
}

// ---- packs

// Begin records a pack before its files are stored, so that Unused finds them if the process dies.
func (p *Packs) Begin(ctx context.Context, pack Pack) error { panic("not written yet") }

// Replace replaces packs of a repository by others, in one transaction. It fails with ErrNotFound if the repository no longer has
// one of the old packs. collected states that the new packs lack objects of the old ones.
func (p *Packs) Replace(ctx context.Context, repoID string, old []string, packs []Pack, collected bool) error {
	panic("not written yet")
}

// Unused returns packs that no repository has and that were recorded, or were last used, before a time.
func (p *Packs) Unused(ctx context.Context, before time.Time, limit int) ([]Pack, error) {
	panic("not written yet")
}

// Forget removes the record of an unused pack before its files are deleted. It returns false if the pack is used.
func (p *Packs) Forget(ctx context.Context, id string, before time.Time) (bool, error) {
	panic("not written yet")
}

// Sharers returns how many repositories have each of the packs of a repository.
func (p *Packs) Sharers(ctx context.Context, repoID string) (map[string]int, error) {
	panic("not written yet")
}

// ---- tokens

func (t *Tokens) Create(ctx context.Context, token Token, events []Event, cause Cause) error {
	panic("not written yet")
}

// ByHash returns the token whose secret has this SHA-256, whether or not it is still valid. The caller compares the hashes in
// constant time.
func (t *Tokens) ByHash(ctx context.Context, hash []byte) (Token, error) { panic("not written yet") }
func (t *Tokens) Get(ctx context.Context, id string) (Token, error)      { panic("not written yet") }

// List returns tokens of a repository in the order of their creation, the newest first, and the number of all that match. state
// is active, expired, revoked or all. An empty repoID selects the tokens for the REST API.
func (t *Tokens) List(ctx context.Context, repoID, state string, offset, limit int) ([]Token, int, error) {
	panic("not written yet")
}

// Revoke revokes a token. It returns nil if the token was revoked before.
func (t *Tokens) Revoke(ctx context.Context, id string, events []Event, cause Cause) error {
	panic("not written yet")
}

// RevokedSince returns the ids of tokens that were revoked at or after a time.
func (t *Tokens) RevokedSince(ctx context.Context, since time.Time) ([]string, error) {
	panic("not written yet")
}

// ---- events, audit, usage, leases, webhooks, settings

// Add adds events that belong to no other change, such as fetches.
func (e *Events) Add(ctx context.Context, events []Event) error { panic("not written yet") }

// After returns up to limit events with a larger number than seq, in order. Empty namespace or repo selects all.
func (e *Events) After(ctx context.Context, seq int64, namespace, repo string, limit int) ([]Event, error) {
	panic("not written yet")
}

// Last returns the number of the newest event.
func (e *Events) Last(ctx context.Context) (int64, error) { panic("not written yet") }

// Changed returns a channel that is closed when this process has added events.
func (e *Events) Changed() <-chan struct{} { panic("not written yet") }

// Drop removes events and audit entries that are older than a time.
func (e *Events) Drop(ctx context.Context, before time.Time) error { panic("not written yet") }

func (a *Audit) Add(ctx context.Context, entries []AuditEntry) error { panic("not written yet") }

// After returns up to limit entries with a larger number than seq, in order.
func (a *Audit) After(ctx context.Context, seq int64, limit int) ([]AuditEntry, error) {
	panic("not written yet")
}

// UsageRow counts the operations of one kind on a repository on one UTC day.
type UsageRow struct {
	Day       string // 2006-01-02
	Namespace string
	RepoID    string
	Operation string // push, fetch, clone, read, create, fork, ...
	Count     int64
	Bytes     int64 // sent and received
}

// Add adds to the counters.
func (u *Usage) Add(ctx context.Context, rows []UsageRow) error { panic("not written yet") }

// List returns the counters of a namespace, or of one of its repositories, for the days from first to last.
func (u *Usage) List(ctx context.Context, namespace, repoID, first, last string) ([]UsageRow, error) {
	panic("not written yet")
}

// Acquire takes or renews a lease on a name for ttl. It returns false while another holder has it.
func (l *Leases) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	panic("not written yet")
}
func (l *Leases) Release(ctx context.Context, name, holder string) error { panic("not written yet") }

// Webhook sends events to a URL.
type Webhook struct {
	ID        string
	Namespace string // "" for all
	Repo      string // "" for all of the namespace
	Types     []string
	URL       string
	Secret    string // of the signature
	Created   time.Time
	Seq       int64 // events up to this number have deliveries
}

// Delivery is the delivery of one event to one webhook.
type Delivery struct {
	Webhook  string
	Event    Event
	Attempts int
	Next     time.Time // of the next attempt
	Dead     bool      // no further attempts are made
	Error    string    // of the last attempt
}

func (w *Webhooks) Create(ctx context.Context, h Webhook) error { panic("not written yet") }
func (w *Webhooks) List(ctx context.Context, namespace string) ([]Webhook, error) {
	panic("not written yet")
}
func (w *Webhooks) Delete(ctx context.Context, id string) error { panic("not written yet") }

// Plan creates the deliveries of events that were added since the last call.
func (w *Webhooks) Plan(ctx context.Context) error { panic("not written yet") }

// Due returns deliveries whose next attempt is due, and delays them by hold so that no other node makes it too.
func (w *Webhooks) Due(ctx context.Context, now time.Time, hold time.Duration, limit int) ([]Delivery, error) {
	panic("not written yet")
}

// Done removes a delivery that succeeded; Failed records an attempt that failed.
func (w *Webhooks) Done(ctx context.Context, webhook string, seq int64) error {
	panic("not written yet")
}
func (w *Webhooks) Failed(ctx context.Context, d Delivery) error { panic("not written yet") }

// Dead returns deliveries that were given up; Retry makes one due again.
func (w *Webhooks) Dead(ctx context.Context, webhook string, limit int) ([]Delivery, error) {
	panic("not written yet")
}
func (w *Webhooks) Retry(ctx context.Context, webhook string, seq int64) error {
	panic("not written yet")
}

// Get returns the value of a setting of the server, such as its account; ErrNotFound if it was never set.
func (s *Settings) Get(ctx context.Context, key string) (string, error) { panic("not written yet") }

// SetOnce sets a setting unless it is set, and returns the value that it has then.
func (s *Settings) SetOnce(ctx context.Context, key, value string) (string, error) {
	panic("not written yet")
}
