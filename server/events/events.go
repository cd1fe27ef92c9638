// Package events makes the events of a server, and sends them to clients as a stream.
//
// The events have the types and the form of Cloudflare Artifacts (schema version 1), so that consumers written for its
// event subscriptions understand them. The field actor is an addition: it identifies the token that caused the event.
// An event is a record; most events are written in the transaction of the change that they describe (package records),
// so an event exists if and only if its change does.
//
// A Stream sends events by server-sent events (html.spec.whatwg.org, section 9.2). Package webhooks delivers them by
// requests.
package events

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

const (
	createdType      = "cf.artifacts.repo.created"
	deletedType      = "cf.artifacts.repo.deleted"
	forkedType       = "cf.artifacts.repo.forked"
	importedType     = "cf.artifacts.repo.imported"
	pushedType       = "cf.artifacts.repo.pushed"
	clonedType       = "cf.artifacts.repo.cloned"
	fetchedType      = "cf.artifacts.repo.fetched"
	tokenCreatedType = "cf.artifacts.repo.token.created"
	tokenRevokedType = "cf.artifacts.repo.token.revoked"
)

// Types lists all types of events: those of the vendor's documentation in its order, and then those of this server
// only.
var Types = []string{
	createdType, deletedType, forkedType, importedType, pushedType, clonedType, fetchedType, tokenCreatedType,
	tokenRevokedType,
	annotatedType, requestedType, grantedType, deniedType, withdrawnType, mergedType, closedType, archivedType,
	reopenedType, sessionGone,
	pinnedType, unpinnedType, policyType,
}

// schemaVersion is the version of the event format that the vendor documents.
const schemaVersion = 1

// Stamp describes the origin of an event. All events of one change have the same stamp.
type Stamp struct {
	Account string
	TokenID string // id of the token that caused the event; "" if no token did
	Label   string // actor or label of this token
	Time    time.Time
}

// ByToken returns the stamp of a change that is made now by the user of a token.
func ByToken(account string, t records.Token) Stamp {
	label := t.Actor
	if label == "" {
		label = t.Label
	}
	return Stamp{Account: account, TokenID: t.ID, Label: label, Time: time.Now()}
}

type (
	body struct {
		Type     string   `json:"type"`
		Source   source   `json:"source"`
		Payload  any      `json:"payload"`
		Metadata metadata `json:"metadata"`
		Actor    *actor   `json:"actor,omitempty"`
	}
	source struct {
		Type      string `json:"type"`
		Namespace string `json:"namespace"`
		RepoName  string `json:"repoName"`
	}
	metadata struct {
		AccountID      string `json:"accountId"`
		SubscriptionID string `json:"eventSubscriptionId"`
		SchemaVersion  int    `json:"eventSchemaVersion"`
		Timestamp      string `json:"eventTimestamp"`
	}
	actor struct {
		TokenID string `json:"tokenId"`
		Label   string `json:"label"`
	}
)

// repoState is the payload of events about a whole repository.
type repoState struct {
	RepoID        string  `json:"repoId"`
	DefaultBranch string  `json:"defaultBranch"`
	Description   *string `json:"description"`
	ReadOnly      bool    `json:"readOnly"`
	CreatedAt     *string `json:"createdAt"`
	UpdatedAt     *string `json:"updatedAt"`
	LastPushAt    *string `json:"lastPushAt"`
}

func stateOf(r records.Repo) repoState {
	s := repoState{
		RepoID: r.ID, DefaultBranch: r.DefaultBranch, ReadOnly: r.ReadOnly,
		CreatedAt: moment(r.Created), UpdatedAt: moment(r.Updated), LastPushAt: moment(r.LastPush),
	}
	if r.Description != "" {
		s.Description = &r.Description
	}
	return s
}

// Created returns the event for a new repository.
func Created(s Stamp, r records.Repo) records.Event { return s.event(createdType, r, stateOf(r)) }

// Deleted returns the event for a repository that is deleted.
func Deleted(s Stamp, r records.Repo) records.Event { return s.event(deletedType, r, stateOf(r)) }

// Forked returns the event for a new fork. The source of the event is the parent.
func Forked(s Stamp, parent, fork records.Repo) records.Event {
	return s.event(forkedType, parent, struct {
		Namespace string `json:"namespace"`
		RepoName  string `json:"repoName"`
		repoState
	}{fork.Namespace, fork.Name, stateOf(fork)})
}

// Imported returns the event for an import that has ended. url has no credentials.
func Imported(s Stamp, r records.Repo, url, branch string) records.Event {
	return s.event(importedType, r, struct {
		repoState
		SourceURL string `json:"sourceUrl"`
		Branch    string `json:"branch"`
	}{stateOf(r), url, branch})
}

// Pushed returns one event for each update. commits is a result of Walk that includes these updates.
func Pushed(s Stamp, r records.Repo, updates []records.RefUpdate, commits map[string]Commits) []records.Event {
	list := make([]records.Event, 0, len(updates))
	for _, u := range updates {
		c := commits[u.Name]
		if c.List == nil {
			c.List = []Commit{}
		}
		list = append(list, s.event(pushedType, r, struct {
			Ref       string   `json:"ref"`
			Before    string   `json:"before"`
			After     string   `json:"after"`
			Commits   []Commit `json:"commits"`
			Total     int      `json:"totalCommitsCount"`
			Truncated bool     `json:"commitsTruncated"`
		}{u.Name, u.Old, u.New, c.List, c.Total, c.Truncated}))
	}
	return list
}

// Cloned returns the event for a fetch by a client that had no commits.
func Cloned(s Stamp, r records.Repo) records.Event { return s.event(clonedType, r, struct{}{}) }

// Fetched returns the event for a fetch by a client that had commits.
func Fetched(s Stamp, r records.Repo) records.Event { return s.event(fetchedType, r, struct{}{}) }

// TokenCreated returns the event for a new token of a repository.
func TokenCreated(s Stamp, r records.Repo, t records.Token) records.Event {
	return s.event(tokenCreatedType, r, struct {
		TokenID   string  `json:"tokenId"`
		Scope     string  `json:"scope"`
		ExpiresAt *string `json:"expiresAt"`
	}{t.ID, string(t.Scope), moment(t.Expires)})
}

// TokenRevoked returns the event for a token of a repository that is revoked.
func TokenRevoked(s Stamp, r records.Repo, tokenID string) records.Event {
	return s.event(tokenRevokedType, r, struct {
		TokenID string `json:"tokenId"`
	}{tokenID})
}

func (s Stamp) event(kind string, r records.Repo, payload any) records.Event {
	b := body{
		Type: kind, Source: source{"artifacts.repo", r.Namespace, r.Name}, Payload: payload,
		Metadata: metadata{s.Account, streamID(s.Account), schemaVersion, *moment(s.Time)},
	}
	switch kind {
	case createdType, deletedType, forkedType, importedType:
		b.Source.Type = "artifacts"
	}
	if s.TokenID != "" {
		b.Actor = &actor{s.TokenID, s.Label}
	}
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // cannot happen, because a payload consists of strings, numbers and booleans
	}
	return records.Event{Type: kind, Namespace: r.Namespace, Repo: r.Name, Time: s.Time, Body: text}
}

// streamID returns the subscription id in events that are read from the server itself. It is the same for all events of
// an account.
func streamID(account string) string {
	sum := sha256.Sum256([]byte("artifactfs events of " + account))
	return hex.EncodeToString(sum[:16])
}

// ForSubscription returns the body of an event with the id of the subscription that receives it.
func ForSubscription(event json.RawMessage, id string) (json.RawMessage, error) {
	var b struct {
		body
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(event, &b); err != nil {
		return nil, err
	}
	b.body.Payload, b.Metadata.SubscriptionID = b.Payload, id
	return json.Marshal(b.body)
}

// moment returns a time in the form of the API, with milliseconds, and nil for the zero time.
func moment(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format("2006-01-02T15:04:05.000Z")
	return &text
}

// isBranch reports whether a ref is a branch, whose events list commits.
func isBranch(ref string) bool { return strings.HasPrefix(ref, "refs/heads/") }
