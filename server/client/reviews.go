package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Repository has methods for the routes of one repository of artifactfs serve: its sessions, its policy and its cache
// entries. Tokens of the repository can use these routes, too; then Options.Account must be set.
type Repository struct {
	c               *Client
	namespace, name string
}

// Repository returns the methods for the routes of a repository.
func (x Extensions) Repository(namespace, name string) Repository {
	return Repository{x.c, namespace, name}
}

// call sends a request for the repository.
func (r Repository) call(ctx context.Context, q request, result any, parts ...string) (PageInfo, error) {
	if q.object == "" {
		q.object = repository(r.namespace, r.name)
	}
	return Extensions{r.c}.extend(ctx, q, result, append([]string{"namespaces", r.namespace, "repos", r.name}, parts...)...)
}

// eachOf yields the elements of all pages of a list.
func eachOf[T any](ctx context.Context, r Repository, q request, parts ...string) iter.Seq2[T, error] {
	if q.query == nil {
		q.query = url.Values{}
	}
	return func(yield func(T, error) bool) {
		for {
			var all []T
			info, err := r.call(ctx, q, &all, parts...)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, v := range all {
				if !yield(v, nil) {
					return
				}
			}
			if info.Cursor == "" {
				return
			}
			q.query.Set("cursor", info.Cursor)
		}
	}
}

// Session is a session of a repository.
type Session struct {
	Name    string     `json:"name"`
	State   string     `json:"state"` // open, active, paused, closed or archived; "" if the metadata cannot be read
	Title   string     `json:"title"`
	Task    string     `json:"task"`
	Owner   string     `json:"owner"`
	Tags    []string   `json:"tags"`
	Expires *time.Time `json:"expires_at"`
	Hold    *Hold      `json:"hold"`
	Remote  string     `json:"remote"` // URL of the remote that the session mounts
	Branch  string     `json:"branch"`
	Base    string     `json:"base"` // commit from which the session began
	Began   *time.Time `json:"began_at"`
	From    string     `json:"forked_from"` // session and checkpoint from which the session was forked
	// link to the original, if the session was copied by a fork of its repository; "": it is no copy
	CopyOf     string `json:"copy_of"`
	Checkpoint string `json:"checkpoint"` // id of the newest checkpoint
	// true if the repository does not have the files on which the session is based
	Thin    bool `json:"thin"`
	Writers []struct {
		Host  string    `json:"host"`
		Since time.Time `json:"since"`
	} `json:"writers"` // machines that use the session, or may use it
	Damage string `json:"damage"` // reason why the metadata cannot be read
}

// Hold keeps a session from being deleted.
type Hold struct {
	Reason string    `json:"reason"`
	Actor  string    `json:"actor"`
	Since  time.Time `json:"since"`
}

// Sessions returns the sessions of a repository, in the order of their names.
func (r Repository) Sessions(ctx context.Context) iter.Seq2[Session, error] {
	return eachOf[Session](ctx, r, request{verb: "list sessions of"}, "sessions")
}

// Session returns a session.
func (r Repository) Session(ctx context.Context, session string) (s Session, err error) {
	_, err = r.call(ctx, request{verb: "show", object: "session " + session}, &s, "sessions", session)
	return s, err
}

// SessionChange is a change of a session. Fields that are nil or empty change nothing.
type SessionChange struct {
	State      string   `json:"state,omitempty"` // open, paused, closed or archived
	Reason     string   `json:"reason,omitempty"`
	Title      *string  `json:"title,omitempty"`
	Task       *string  `json:"task,omitempty"`
	Owner      *string  `json:"owner,omitempty"`
	AddTags    []string `json:"add_tags,omitempty"`
	RemoveTags []string `json:"remove_tags,omitempty"`
	TTL        *int     `json:"ttl,omitempty"`  // time in seconds after which the session expires; 0: never
	Hold       *string  `json:"hold,omitempty"` // reason of a hold to place; "" releases the hold
}

// ChangeSession changes the state or the profile of a session, and returns the session after the change.
func (r Repository) ChangeSession(ctx context.Context, session string, c SessionChange) (s Session, err error) {
	_, err = r.call(ctx, request{verb: "change", object: "session " + session, method: http.MethodPatch, body: c}, &s, "sessions", session)
	return s, err
}

// DeleteSession moves a session to the trash.
func (r Repository) DeleteSession(ctx context.Context, session string) error {
	_, err := r.call(ctx, request{verb: "delete", object: "session " + session, method: http.MethodDelete}, nil, "sessions", session)
	return err
}

// Checkpoint is a checkpoint of a session.
type Checkpoint struct {
	ID      string    `json:"id"`
	Commit  string    `json:"commit"`
	Tree    string    `json:"tree"`
	Head    string    `json:"head"` // commit of HEAD; "" if there is none
	Branch  string    `json:"branch"`
	Made    time.Time `json:"made_at"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Changed int64     `json:"changed"` // number of paths that differ from the previous checkpoint
	Bytes   int64     `json:"bytes"`
	Pins    []string  `json:"pins"`
}

// Checkpoints returns the checkpoints of a session, the newest first.
func (r Repository) Checkpoints(ctx context.Context, session string) iter.Seq2[Checkpoint, error] {
	return eachOf[Checkpoint](ctx, r, request{verb: "list", object: "checkpoints of session " + session},
		"sessions", session, "checkpoints")
}

// Pin gives a checkpoint a name, so that gc keeps the checkpoint; "" stands for the newest one. It returns the id of the checkpoint.
func (r Repository) Pin(ctx context.Context, session, pin, checkpoint string) (string, error) {
	var made struct{ Checkpoint string }
	_, err := r.call(ctx, request{verb: "pin", object: "session " + session, method: http.MethodPut,
		body: map[string]string{"checkpoint": checkpoint}}, &made, "sessions", session, "pins", pin)
	return made.Checkpoint, err
}

// Unpin removes the name of a checkpoint.
func (r Repository) Unpin(ctx context.Context, session, pin string) error {
	_, err := r.call(ctx, request{verb: "unpin", object: "session " + session, method: http.MethodDelete}, nil,
		"sessions", session, "pins", pin)
	return err
}

// AnnotationPlace is the object to which a thread refers. Without Checkpoint and Commit, this is the session.
type AnnotationPlace struct {
	Checkpoint string `json:"checkpoint"`
	Commit     string `json:"commit"`
	Path       string `json:"path"`
	Blob       string `json:"blob"`
	Line       int    `json:"line"` // first line, counted from 1; 0: the whole file
	End        int    `json:"end"`
	Quote      string `json:"quote"`
}

// AnnotationNow is the position of a thread in a checkpoint.
type AnnotationNow struct {
	State string `json:"state"` // same, moved, outdated or unknown
	Path  string `json:"path"`
	Blob  string `json:"blob"`
	Line  int    `json:"line"`
	End   int    `json:"end"`
}

// Thread is a thread of annotations.
type Thread struct {
	ID          string          `json:"id"`
	State       string          `json:"state"` // open or resolved
	On          AnnotationPlace `json:"on"`
	Now         *AnnotationNow  `json:"now"` // nil for a thread that does not refer to a file
	Annotations []struct {
		ID    string    `json:"id"`
		At    time.Time `json:"at"`
		Actor string    `json:"actor"`
		Op    string    `json:"op"` // open, reply, resolve or reopen
		Text  string    `json:"text"`
	} `json:"annotations"`
}

// Annotations returns the threads of a session with their positions in a checkpoint; "" stands for the newest
// checkpoint.
func (r Repository) Annotations(ctx context.Context, session, checkpoint string) (all []Thread, err error) {
	q := url.Values{}
	if checkpoint != "" {
		q.Set("checkpoint", checkpoint)
	}
	_, err = r.call(ctx, request{verb: "list", object: "annotations of session " + session, query: q}, &all,
		"sessions", session, "annotations")
	return all, err
}

// Annotate is an annotation to add. Without Checkpoint, Commit and Path, a new thread refers to the whole session.
type Annotate struct {
	Op         string `json:"op,omitempty"`     // open (default), reply, resolve or reopen
	Thread     string `json:"thread,omitempty"` // id of the thread, for all operations except open
	Text       string `json:"text,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Path       string `json:"path,omitempty"`
	Line       int    `json:"line,omitempty"`
	End        int    `json:"end,omitempty"`
}

// Annotate begins a thread of annotations or adds to one, and returns the thread.
func (r Repository) Annotate(ctx context.Context, session string, a Annotate) (Thread, error) {
	var made struct{ Thread Thread }
	_, err := r.call(ctx, request{verb: "annotate", object: "session " + session, method: http.MethodPost, body: a}, &made,
		"sessions", session, "annotations")
	return made.Thread, err
}

// Vote is a grant or a denial.
type Vote struct {
	ID      string    `json:"id"`
	Actor   string    `json:"actor"`
	TokenID string    `json:"token_id"`
	At      time.Time `json:"at"`
	Text    string    `json:"text"`
}

// Approval is a request for an approval, with its state.
type Approval struct {
	ID         string    `json:"id"`
	Session    string    `json:"session"`
	Action     string    `json:"action"`  // merge, promote or delete
	Status     string    `json:"status"`  // open, granted, denied, withdrawn, expired or void
	Missing    string    `json:"missing"` // what the request still needs to be granted
	Checkpoint string    `json:"checkpoint"`
	Branch     string    `json:"branch"`
	Base       string    `json:"base"` // commit of the branch that was reviewed
	Tree       string    `json:"tree"` // tree of the branch after the change
	Moved      bool      `json:"moved"`
	Actor      string    `json:"actor"`
	Text       string    `json:"text"`
	Reviewers  []string  `json:"reviewers"`
	Requested  time.Time `json:"requested_at"`
	Expires    time.Time `json:"expires_at"`
	Grants     []Vote    `json:"grants"`
	Denials    []Vote    `json:"denials"`
	Counted    bool      `json:"counted"` // only in the answer to a grant: whether the grant counts
}

// Approvals returns the requests of a session, the newest first.
func (r Repository) Approvals(ctx context.Context, session string) (all []Approval, err error) {
	_, err = r.call(ctx, request{verb: "list", object: "approvals of session " + session}, &all, "sessions", session, "approvals")
	return all, err
}

// RequestApproval describes the change for which an approval is requested.
type RequestApproval struct {
	Action     string   `json:"action,omitempty"` // merge (default), promote or delete
	Checkpoint string   `json:"checkpoint,omitempty"`
	Branch     string   `json:"branch,omitempty"` // branch to change; "": the default branch
	Reviewers  []string `json:"reviewers,omitempty"`
	TTL        int      `json:"ttl,omitempty"` // time in seconds until the request expires; 0: a day
	Text       string   `json:"text,omitempty"`
}

// RequestApproval requests an approval of the newest checkpoint of a session.
func (r Repository) RequestApproval(ctx context.Context, session string, q RequestApproval) (a Approval, err error) {
	_, err = r.call(ctx, request{verb: "request approval of", object: "session " + session, method: http.MethodPost, body: q}, &a,
		"sessions", session, "approvals")
	return a, err
}

// Answer grants, denies or withdraws a request; op is "grant", "deny" or "withdraw".
func (r Repository) Answer(ctx context.Context, session, id, op, text string) (a Approval, err error) {
	_, err = r.call(ctx, request{verb: op, object: "request " + id, method: http.MethodPost, body: map[string]string{"text": text}}, &a,
		"sessions", session, "approvals", id, op)
	return a, err
}

// MergeSession selects the commits of a session that are merged, the branch, and the method.
type MergeSession struct {
	Method     string `json:"method,omitempty"` // ff (default), squash or merge
	Branch     string `json:"branch,omitempty"` // branch to change; "": the default branch
	Checkpoint string `json:"checkpoint,omitempty"`
	Message    string `json:"message,omitempty"`
	Expect     string `json:"expect,omitempty"` // commit to which the branch must point before; "": any
}

// Merged is the result of a merge.
type Merged struct {
	Session    string `json:"session"`
	Checkpoint string `json:"checkpoint"`
	Method     string `json:"method"`
	Branch     string `json:"branch"`
	Before     string `json:"before"` // commit of the branch before the merge; "" if the branch did not exist
	After      string `json:"after"`
	Commits    int    `json:"commits"`
}

// Merge adds the commits of a session to a branch of the repository. If the merge has conflicts, the error has
// Error.Conflict.
func (r Repository) Merge(ctx context.Context, session string, m MergeSession) (made Merged, err error) {
	_, err = r.call(ctx, request{verb: "merge", object: "session " + session, method: http.MethodPost, body: m}, &made,
		"sessions", session, "merge")
	return made, err
}

// Policy is the policy of a repository.
type Policy struct {
	Policy  json.RawMessage `json:"policy"` // text of the policy; null if there is none
	Commit  string          `json:"commit"`
	Problem string          `json:"problem"` // reason why the policy is not valid; "" if it is valid
}

// Policy returns the policy of the repository.
func (r Repository) Policy(ctx context.Context) (p Policy, err error) {
	_, err = r.call(ctx, request{verb: "show policy of"}, &p, "policy")
	return p, err
}

// SetPolicy replaces the policy. If expect is not nil, the commit of the present policy must be *expect; "" stands for
// no policy.
func (r Repository) SetPolicy(ctx context.Context, policy json.RawMessage, expect *string) (p Policy, err error) {
	body := map[string]any{"policy": policy}
	if expect != nil {
		body["expect"] = *expect
	}
	_, err = r.call(ctx, request{verb: "set policy of", method: http.MethodPut, body: body}, &p, "policy")
	return p, err
}

// CacheEntry describes a cache entry.
type CacheEntry struct {
	Key     string     `json:"key"`
	Size    int64      `json:"size"`
	Hash    string     `json:"sha256"`
	Stored  time.Time  `json:"stored_at"`
	Expires *time.Time `json:"expires_at"`
	Actor   string     `json:"actor"`
	Session string     `json:"session"`
}

// CacheEntries returns the cache entries whose keys begin with prefix, in the order of their keys.
func (r Repository) CacheEntries(ctx context.Context, prefix string) iter.Seq2[CacheEntry, error] {
	q := url.Values{}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	return eachOf[CacheEntry](ctx, r, request{verb: "list cache entries of", query: q}, "cache")
}

// CacheEntry returns the description of a cache entry.
func (r Repository) CacheEntry(ctx context.Context, key string) (e CacheEntry, err error) {
	_, err = r.call(ctx, request{verb: "show", object: "cache entry " + key, query: url.Values{"key": {key}}}, &e, "cache", "entry")
	return e, err
}

// CacheValue returns the value of a cache entry. The caller must close it.
func (r Repository) CacheValue(ctx context.Context, key string) (io.ReadCloser, error) {
	q := request{verb: "read", object: "cache entry " + key, method: http.MethodGet, query: url.Values{"key": {key}}}
	account, err := r.c.Account(ctx)
	if err != nil {
		return nil, err
	}
	q.path = "/artifactfs/v1/accounts/" + url.PathEscape(account) +
		join([]string{"namespaces", r.namespace, "repos", r.name, "cache", "value"})
	res, err := r.c.send(ctx, q)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// PutCacheEntry describes a cache entry to store.
type PutCacheEntry struct {
	Key     string
	Value   []byte
	TTL     time.Duration // lifetime of the entry; 0: the entry does not expire
	Expect  string        // SHA-256 of the present value; "none" if there must be no entry; "" for any
	Session string        // session that has made the value; "" for none
}

// PutCacheEntry stores a cache entry. If the present entry is not as p.Expect states, the error has Error.Conflict.
func (r Repository) PutCacheEntry(ctx context.Context, p PutCacheEntry) (e CacheEntry, err error) {
	q := url.Values{"key": {p.Key}}
	for name, value := range map[string]string{"expect": p.Expect, "session": p.Session} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if p.TTL > 0 {
		q.Set("ttl", strconv.FormatInt(int64((p.TTL+time.Second-1)/time.Second), 10))
	}
	_, err = r.call(ctx, request{verb: "store", object: "cache entry " + p.Key, method: http.MethodPut, query: q,
		raw: append([]byte{}, p.Value...)}, &e, "cache", "value")
	return e, err
}

// DeleteCacheEntry removes a cache entry. Unless expect is "", the value of the entry must have this SHA-256.
func (r Repository) DeleteCacheEntry(ctx context.Context, key, expect string) error {
	q := url.Values{"key": {key}}
	if expect != "" {
		q.Set("expect", expect)
	}
	_, err := r.call(ctx, request{verb: "delete", object: "cache entry " + key, method: http.MethodDelete, query: q}, nil, "cache", "entry")
	return err
}
