package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// ArchivedSession is a session whose refs are in a file in the object store, and not in its repository.
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

// ArchiveResult is the result of Archive.
type ArchiveResult struct {
	Archived []string `json:"archived"`
	Failed   []struct {
		Session string `json:"session"`
		Error   string `json:"error"`
	} `json:"failed"`
}

// Archived returns the archived sessions of a repository, in the order of their names.
func (x Extensions) Archived(ctx context.Context, namespace, name string) iter.Seq2[ArchivedSession, error] {
	q := url.Values{"limit": {"1000"}}
	return func(yield func(ArchivedSession, error) bool) {
		for {
			var all []ArchivedSession
			info, err := x.extend(ctx, request{verb: "list", object: "archived sessions of " + namespace + "/" + name, query: q}, &all,
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

// Archive archives up to 100 sessions of a repository. A session that is active or on hold is not archived; this is an
// error only if sessions names no other one.
func (x Extensions) Archive(ctx context.Context, namespace, name string, sessions ...string) (r ArchiveResult, err error) {
	_, err = x.extend(ctx, request{verb: "archive", object: "sessions of " + namespace + "/" + name, method: http.MethodPost,
		body: map[string][]string{"sessions": sessions}}, &r, "namespaces", namespace, "repos", name, "archive")
	return r, err
}

// Reopen restores an archived session to its repository.
func (x Extensions) Reopen(ctx context.Context, namespace, name, session, reason string) error {
	_, err := x.extend(ctx, request{verb: "reopen", object: "session " + session, method: http.MethodPost,
		body: map[string]string{"reason": reason}}, nil, "namespaces", namespace, "repos", name, "archive", session, "reopen")
	return err
}

// RetentionStep is a step that the retention of a namespace requires for a session.
type RetentionStep struct {
	Repo    string    `json:"repo"`
	Session string    `json:"session"`
	State   string    `json:"state"` // state of the session; "deleted" if it is in the trash
	Title   string    `json:"title,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Action  string    `json:"action"`       // "close", "archive", "delete", "erase", "purge" or "none"
	Due     time.Time `json:"due,omitzero"` // time at which the step is due; zero for "none"
	Why     string    `json:"why"`          // the rule that requires the step, or the reason why there is none
}

// RetentionSteps is the result of RetentionPlan and RunRetention.
type RetentionSteps struct {
	Steps []RetentionStep `json:"steps"`
	Error *string         `json:"error"` // reason why steps that were due were not made; nil if all were made
}

// Retention returns the rules of a namespace, in the format that the OpenAPI document describes.
func (x Extensions) Retention(ctx context.Context, namespace string) (rules json.RawMessage, err error) {
	_, err = x.extend(ctx, request{verb: "show", object: "retention of " + namespace}, &rules, "namespaces", namespace, "retention")
	return rules, err
}

// SetRetention replaces the rules of a namespace.
func (x Extensions) SetRetention(ctx context.Context, namespace string, rules json.RawMessage) error {
	_, err := x.extend(ctx, request{verb: "set", object: "retention of " + namespace, method: http.MethodPut, body: rules}, nil,
		"namespaces", namespace, "retention")
	return err
}

// DeleteRetention removes the rules of a namespace.
func (x Extensions) DeleteRetention(ctx context.Context, namespace string) error {
	_, err := x.extend(ctx, request{verb: "remove", object: "retention of " + namespace, method: http.MethodDelete}, nil,
		"namespaces", namespace, "retention")
	return err
}

// RetentionPlan returns which steps the rules of a namespace require for each session, and when.
func (x Extensions) RetentionPlan(ctx context.Context, namespace string) (s RetentionSteps, err error) {
	_, err = x.extend(ctx, request{verb: "plan", object: "retention of " + namespace}, &s, "namespaces", namespace, "retention", "plan")
	return s, err
}

// RunRetention applies the rules of a namespace now, and returns the steps that the server has made.
func (x Extensions) RunRetention(ctx context.Context, namespace string) (s RetentionSteps, err error) {
	_, err = x.extend(ctx, request{verb: "apply", object: "retention of " + namespace, method: http.MethodPost}, &s, "namespaces", namespace,
		"retention", "run")
	return s, err
}
