package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// ArchivedSession describes an archived session. Its refs and objects are in a file in the object store, and not in its
// repository.
type ArchivedSession struct {
	Session  string     `json:"session"`
	State    string     `json:"state"` // always "archived"
	Title    string     `json:"title"`
	Owner    string     `json:"owner"`
	Tags     []string   `json:"tags"`
	Bytes    int64      `json:"bytes"` // size of the file in bytes
	Changed  *time.Time `json:"changed_at"`
	Archived *time.Time `json:"archived_at"`
}

// ArchiveResult is the result of Archive: the sessions that were archived, and those that could not be.
type ArchiveResult struct {
	Archived []string `json:"archived"`
	Failed   []struct {
		Session string `json:"session"`
		Error   string `json:"error"`
	} `json:"failed"`
}

// Archived yields the archived sessions of a repository, sorted by name. It ends after an error.
func (x Extensions) Archived(ctx context.Context, namespace, name string) iter.Seq2[ArchivedSession, error] {
	q := url.Values{"limit": {"1000"}}
	return func(yield func(ArchivedSession, error) bool) {
		for {
			var all []ArchivedSession
			info, err := x.extend(ctx, request{verb: "list", object: "archived sessions of " + namespace + "/" + name, query: q},
				&all,
				"namespaces", namespace, "repos", name, "archive")
			if err != nil {
				yield(ArchivedSession{}, err)
				return
			}
			for _, s := range all {
				if !yield(s, nil) {
					return
				}
			}
			if info.Cursor == "" {
				return
			}
			q.Set("cursor", info.Cursor)
		}
	}
}

// Archive archives the named sessions of a repository, at most 100. It does not archive sessions that are active or on
// hold, and lists them in the result; if there are no others, it returns an error.
func (x Extensions) Archive(ctx context.Context, namespace, name string,
	sessions ...string) (r ArchiveResult, err error) {
	_, err = x.extend(ctx, request{verb: "archive", object: "sessions of " + namespace + "/" + name,
		method: http.MethodPost,
		body:   map[string][]string{"sessions": sessions}}, &r, "namespaces", namespace, "repos", name, "archive")
	return r, err
}

// Reopen moves an archived session back to its repository. reason is recorded in the history of the session.
func (x Extensions) Reopen(ctx context.Context, namespace, name, session, reason string) error {
	_, err := x.extend(ctx, request{verb: "reopen", object: "session " + session, method: http.MethodPost,
		body: map[string]string{"reason": reason}}, nil, "namespaces", namespace, "repos", name, "archive", session, "reopen")
	return err
}

// RetentionStep is a step, such as the deletion of a session, that the retention rules of a namespace require.
type RetentionStep struct {
	Repo    string    `json:"repo"`
	Session string    `json:"session"`
	State   string    `json:"state"` // state of the session; "deleted" if it is in the trash
	Title   string    `json:"title,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Action  string    `json:"action"`       // "close", "archive", "delete", "erase", "purge" or "none"
	Due     time.Time `json:"due,omitzero"` // time at which the step is due; zero for "none"
	Why     string    `json:"why"`          // rule that requires the step, or reason why none is required
}

// RetentionSteps is the result of RetentionPlan and RunRetention.
type RetentionSteps struct {
	Steps []RetentionStep `json:"steps"`
	Error *string         `json:"error"` // reason why steps that were due were not made; nil if all were made
}

// Retention returns the retention rules of a namespace, by which the server closes, archives and deletes sessions. The
// OpenAPI document describes their format.
func (x Extensions) Retention(ctx context.Context, namespace string) (rules json.RawMessage, err error) {
	_, err = x.extend(ctx, request{verb: "show", object: "retention of " + namespace}, &rules, "namespaces",
		namespace, "retention")
	return rules, err
}

// SetRetention replaces the retention rules of a namespace. The OpenAPI document describes their format.
func (x Extensions) SetRetention(ctx context.Context, namespace string, rules json.RawMessage) error {
	_, err := x.extend(ctx, request{verb: "set", object: "retention of " + namespace, method: http.MethodPut, body: rules},
		nil,
		"namespaces", namespace, "retention")
	return err
}

// DeleteRetention removes the retention rules of a namespace.
func (x Extensions) DeleteRetention(ctx context.Context, namespace string) error {
	_, err := x.extend(ctx, request{verb: "remove", object: "retention of " + namespace, method: http.MethodDelete}, nil,
		"namespaces", namespace, "retention")
	return err
}

// RetentionPlan returns the steps that the retention rules of a namespace require for each session, with their times.
func (x Extensions) RetentionPlan(ctx context.Context, namespace string) (s RetentionSteps, err error) {
	_, err = x.extend(ctx, request{verb: "plan", object: "retention of " + namespace}, &s, "namespaces", namespace,
		"retention", "plan")
	return s, err
}

// RunRetention applies the retention rules of a namespace now, and returns the steps that the server has made.
func (x Extensions) RunRetention(ctx context.Context, namespace string) (s RetentionSteps, err error) {
	_, err = x.extend(ctx, request{verb: "apply", object: "retention of " + namespace, method: http.MethodPost}, &s,
		"namespaces", namespace,
		"retention", "run")
	return s, err
}
