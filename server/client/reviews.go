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

// Repository has methods for the sessions, the policy and the cache entries of one repository of artifactfs serve.
// These are extensions of the API. They can also be used with a repository token as Options.Token, if Options.Account
// is set.
type Repository struct {
	c               *Client
	namespace, name string
}

// Repository returns the methods for the sessions, the policy and the cache entries of a repository. It sends no
// request.
func (x Extensions) Repository(namespace, name string) Repository {
	return Repository{x.c, namespace, name}
}

// call sends a request to a resource of the repository, and decodes the field "result" of the answer into result.
func (r Repository) call(ctx context.Context, q request, result any, parts ...string) (PageInfo, error) {
	if q.object == "" {
		q.object = repository(r.namespace, r.name)
	}
	return Extensions{r.c}.extend(ctx, q, result,
		append([]string{"namespaces", r.namespace, "repos", r.name}, parts...)...)
}

// eachOf yields the items of all pages of a list of the repository. It ends after an error.
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

// Session describes a session of a repository.
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
	Base    string     `json:"base"` // commit from which the session started
	Began   *time.Time `json:"began_at"`
	From    string     `json:"forked_from"` // session and checkpoint from which the session was forked
	// link to the original session, if this one was copied by a fork of the repository; "" otherwise
	CopyOf     string `json:"copy_of"`
	Checkpoint string `json:"checkpoint"` // id of the newest checkpoint
	// whether the repository lacks the history of the remote that the session mounts
	Thin    bool `json:"thin"`
	Writers []struct {
		Host  string    `json:"host"`
		Since time.Time `json:"since"`
	} `json:"writers"` // machines that use the session, or may use it
	Damage string `json:"damage"` // reason why the metadata cannot be read
}

// Hold describes a hold, which keeps a session from being deleted, archived and shortened.
type Hold struct {
	Reason string    `json:"reason"`
	Actor  string    `json:"actor"`
	Since  time.Time `json:"since"`
}

// Sessions yields the sessions of the repository, sorted by name. It ends after an error.
func (r Repository) Sessions(ctx context.Context) iter.Seq2[Session, error] {
	return eachOf[Session](ctx, r, request{verb: "list sessions of"}, "sessions")
}

// Session returns the description of the session with the given name.
func (r Repository) Session(ctx context.Context, session string) (s Session, err error) {
	_, err = r.call(ctx, request{verb: "show", object: "session " + session}, &s, "sessions", session)
	return s, err
}

// SessionChange contains the changes that ChangeSession makes. A field that is nil or empty changes nothing.
type SessionChange struct {
	State      string   `json:"state,omitempty"` // open, paused, closed or archived
	Reason     string   `json:"reason,omitempty"`
	Title      *string  `json:"title,omitempty"`
	Task       *string  `json:"task,omitempty"`
	Owner      *string  `json:"owner,omitempty"`
	AddTags    []string `json:"add_tags,omitempty"`
	RemoveTags []string `json:"remove_tags,omitempty"`
	TTL        *int     `json:"ttl,omitempty"`  // time in seconds after which the session expires; 0: never
	Hold       *string  `json:"hold,omitempty"` // reason of a new hold; "" releases the hold
}

// ChangeSession changes the state or the profile of a session, and returns the session after the change.
func (r Repository) ChangeSession(ctx context.Context, session string, c SessionChange) (s Session, err error) {
	_, err = r.call(ctx, request{verb: "change", object: "session " + session, method: http.MethodPatch, body: c}, &s,
		"sessions", session)
	return s, err
}

// DeleteSession deletes a session. It moves the session to the trash, from which it can be restored for 7 days.
func (r Repository) DeleteSession(ctx context.Context, session string) error {
	_, err := r.call(ctx, request{verb: "delete", object: "session " + session, method: http.MethodDelete}, nil,
		"sessions", session)
	return err
}

// Checkpoint describes a checkpoint of a session.
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

// Checkpoints yields the checkpoints of a session, the newest first. It ends after an error.
func (r Repository) Checkpoints(ctx context.Context, session string) iter.Seq2[Checkpoint, error] {
	return eachOf[Checkpoint](ctx, r, request{verb: "list", object: "checkpoints of session " + session},
		"sessions", session, "checkpoints")
}

// Pin gives a checkpoint of a session the name pin, so that gc keeps it, and returns the id of the checkpoint.
// checkpoint is its id or name; "" stands for the newest checkpoint.
func (r Repository) Pin(ctx context.Context, session, pin, checkpoint string) (string, error) {
	var made struct{ Checkpoint string }
	_, err := r.call(ctx, request{verb: "pin", object: "session " + session, method: http.MethodPut,
		body: map[string]string{"checkpoint": checkpoint}}, &made, "sessions", session, "pins", pin)
	return made.Checkpoint, err
}

// Unpin removes the name pin of a checkpoint. The checkpoint remains until gc removes it.
func (r Repository) Unpin(ctx context.Context, session, pin string) error {
	_, err := r.call(ctx, request{verb: "unpin", object: "session " + session, method: http.MethodDelete}, nil,
		"sessions", session, "pins", pin)
	return err
}

// AnnotationPlace states what a thread of annotations is about: a checkpoint, a commit, or a file or lines of it in one
// of these. If Checkpoint and Commit are empty, it is about the whole session.
type AnnotationPlace struct {
	Checkpoint string `json:"checkpoint"`
	Commit     string `json:"commit"`
	Path       string `json:"path"`
	Blob       string `json:"blob"`
	Line       int    `json:"line"` // first line, counted from 1; 0: the whole file
	End        int    `json:"end"`
	Quote      string `json:"quote"`
}

// AnnotationNow is the position of the annotated file or lines in another checkpoint.
type AnnotationNow struct {
	State string `json:"state"` // same, moved, outdated or unknown
	Path  string `json:"path"`
	Blob  string `json:"blob"`
	Line  int    `json:"line"`
	End   int    `json:"end"`
}

// Thread is a thread of annotations: the first one and the replies to it.
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

// Annotations returns the threads of annotations of a session, with their positions in the given checkpoint; "" stands
// for the newest checkpoint.
func (r Repository) Annotations(ctx context.Context, session, checkpoint string) (all []Thread, err error) {
	q := url.Values{}
	if checkpoint != "" {
		q.Set("checkpoint", checkpoint)
	}
	_, err = r.call(ctx, request{verb: "list", object: "annotations of session " + session, query: q}, &all,
		"sessions", session, "annotations")
	return all, err
}

// Annotate contains the parameters of Repository.Annotate. If Checkpoint, Commit and Path are empty, a new thread is
// about the whole session.
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

// Annotate adds an annotation, which begins a thread or belongs to an existing one, and returns the thread.
func (r Repository) Annotate(ctx context.Context, session string, a Annotate) (Thread, error) {
	var made struct{ Thread Thread }
	_, err := r.call(ctx, request{verb: "annotate", object: "session " + session, method: http.MethodPost, body: a}, &made,
		"sessions", session, "annotations")
	return made.Thread, err
}

// Vote is a grant or a denial of a request for approval.
type Vote struct {
	ID      string    `json:"id"`
	Actor   string    `json:"actor"`
	TokenID string    `json:"token_id"`
	At      time.Time `json:"at"`
	Text    string    `json:"text"`
}

// Approval is a request for approval, with its present state.
type Approval struct {
	ID         string    `json:"id"`
	Session    string    `json:"session"`
	Action     string    `json:"action"`  // merge, promote or delete
	Status     string    `json:"status"`  // open, granted, denied, withdrawn, expired or void
	Missing    string    `json:"missing"` // text that states what the request still needs to be granted
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

// Approvals returns the requests for approval of a session, the newest first.
func (r Repository) Approvals(ctx context.Context, session string) (all []Approval, err error) {
	_, err = r.call(ctx, request{verb: "list", object: "approvals of session " + session}, &all, "sessions",
		session, "approvals")
	return all, err
}

// RequestApproval contains the parameters of Repository.RequestApproval: the change that is to be approved.
type RequestApproval struct {
	Action     string   `json:"action,omitempty"` // merge (default), promote or delete
	Checkpoint string   `json:"checkpoint,omitempty"`
	Branch     string   `json:"branch,omitempty"` // branch to change; "": the default branch
	Reviewers  []string `json:"reviewers,omitempty"`
	TTL        int      `json:"ttl,omitempty"` // time in seconds until the request expires; 0: a day
	Text       string   `json:"text,omitempty"`
}

// RequestApproval requests approval of a change by the newest checkpoint of a session, and returns the request.
func (r Repository) RequestApproval(ctx context.Context, session string, q RequestApproval) (a Approval, err error) {
	_, err = r.call(ctx, request{verb: "request approval of", object: "session " + session,
		method: http.MethodPost, body: q}, &a,
		"sessions", session, "approvals")
	return a, err
}

// Answer grants, denies or withdraws the request for approval with the given id, and returns its new state. op is
// "grant", "deny" or "withdraw"; text is the reason.
func (r Repository) Answer(ctx context.Context, session, id, op, text string) (a Approval, err error) {
	_, err = r.call(ctx, request{verb: op, object: "request " + id, method: http.MethodPost,
		body: map[string]string{"text": text}}, &a,
		"sessions", session, "approvals", id, op)
	return a, err
}

// MergeSession contains the parameters of Repository.Merge.
type MergeSession struct {
	Method     string `json:"method,omitempty"` // ff (default), squash or merge
	Branch     string `json:"branch,omitempty"` // branch to change; "": the default branch
	Checkpoint string `json:"checkpoint,omitempty"`
	Message    string `json:"message,omitempty"`
	Expect     string `json:"expect,omitempty"` // commit to which the branch must point before the merge; "": any
}

// Merged describes the result of Repository.Merge.
type Merged struct {
	Session    string `json:"session"`
	Checkpoint string `json:"checkpoint"`
	Method     string `json:"method"`
	Branch     string `json:"branch"`
	Before     string `json:"before"` // commit of the branch before the merge; "" if the branch did not exist
	After      string `json:"after"`
	Commits    int    `json:"commits"`
}

// Merge merges the commits of a session into a branch of the repository. If the merge has conflicts, it returns an
// *Error whose field Conflict lists the paths.
func (r Repository) Merge(ctx context.Context, session string, m MergeSession) (made Merged, err error) {
	_, err = r.call(ctx, request{verb: "merge", object: "session " + session, method: http.MethodPost, body: m}, &made,
		"sessions", session, "merge")
	return made, err
}

// Policy is the policy of a repository: the rules that state which changes need approvals.
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

// SetPolicy replaces the policy of the repository, and returns the new one. If expect is not nil, the present policy
// must have the commit *expect, where "" stands for no policy; otherwise SetPolicy returns an *Error with the field
// Conflict.
func (r Repository) SetPolicy(ctx context.Context, policy json.RawMessage, expect *string) (p Policy, err error) {
	body := map[string]any{"policy": policy}
	if expect != nil {
		body["expect"] = *expect
	}
	_, err = r.call(ctx, request{verb: "set policy of", method: http.MethodPut, body: body}, &p, "policy")
	return p, err
}

// CacheEntry describes a cache entry: a value, such as a test result, that is shared under a key.
type CacheEntry struct {
	Key     string     `json:"key"`
	Size    int64      `json:"size"`
	Hash    string     `json:"sha256"`
	Stored  time.Time  `json:"stored_at"`
	Expires *time.Time `json:"expires_at"`
	Actor   string     `json:"actor"`
	Session string     `json:"session"`
}

// CacheEntries yields the cache entries of the repository whose keys begin with prefix, sorted by key. It ends after an
// error.
func (r Repository) CacheEntries(ctx context.Context, prefix string) iter.Seq2[CacheEntry, error] {
	q := url.Values{}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	return eachOf[CacheEntry](ctx, r, request{verb: "list cache entries of", query: q}, "cache")
}

// CacheEntry returns the description of the cache entry with the given key.
func (r Repository) CacheEntry(ctx context.Context, key string) (e CacheEntry, err error) {
	_, err = r.call(ctx, request{verb: "show", object: "cache entry " + key, query: url.Values{"key": {key}}}, &e,
		"cache", "entry")
	return e, err
}

// CacheValue returns a reader for the value of a cache entry. The caller must close the reader.
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

// PutCacheEntry contains the parameters of Repository.PutCacheEntry.
type PutCacheEntry struct {
	Key     string
	Value   []byte
	TTL     time.Duration // lifetime of the entry; 0: the entry does not expire
	Expect  string        // SHA-256 that the present value must have; "none": the entry must not exist; "": any
	Session string        // session that has made the value; "" for none
}

// PutCacheEntry stores a cache entry, and returns its description. If the present entry does not match p.Expect, it
// returns an *Error with the field Conflict.
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

// DeleteCacheEntry removes the cache entry with the given key. Unless expect is "", the value of the entry must have
// the SHA-256 expect.
func (r Repository) DeleteCacheEntry(ctx context.Context, key, expect string) error {
	q := url.Values{"key": {key}}
	if expect != "" {
		q.Set("expect", expect)
	}
	_, err := r.call(ctx, request{verb: "delete", object: "cache entry " + key, method: http.MethodDelete, query: q}, nil,
		"cache", "entry")
	return err
}
