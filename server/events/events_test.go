package events

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

var (
	repo = records.Repo{
		ID: "0tvugavnogssnwzk", Namespace: "my-namespace", Name: "my-repo", Description: "My <Artifacts> repository",
		DefaultBranch: "main",
		Created:       time.Date(2026, 5, 18, 15, 53, 46, 833e6, time.UTC),
		Updated:       time.Date(2026, 5, 18, 15, 53, 46, 833e6, time.UTC),
	}
	stamp = Stamp{Account: "f9f79265f388666de8122cfb508d7776", TokenID: "tok", Label: "agent 7",
		Time: time.Date(2026, 5, 18, 17, 53, 48, 187e6, time.FixedZone("", 7200))}
)

const (
	repoText = `"repoId":"0tvugavnogssnwzk","defaultBranch":"main","description":"My \u003cArtifacts\u003e repository","readOnly":false,` +
		`"createdAt":"2026-05-18T15:53:46.833Z","updatedAt":"2026-05-18T15:53:46.833Z","lastPushAt":null`
	zeros = "0000000000000000000000000000000000000000"
	some  = "def789abc012def789abc012def789abc012def7"
)

// TestBodiesHaveTheDocumentedForm checks that the bodies of events are those of Cloudflare's documentation, in the
// order of its fields, with the actor added.
func TestBodiesHaveTheDocumentedForm(t *testing.T) {
	fork := repo
	fork.Namespace, fork.Name, fork.ID, fork.Description, fork.ReadOnly = "target-namespace", "target-repo",
		"5ank", "", true
	fork.LastPush = repo.Created
	token := records.Token{ID: "7ngdf3ww3u84t33x", Scope: records.ReadScope,
		Expires: time.Date(2026, 5, 20, 16, 58, 14, 548e6, time.UTC)}
	push := []records.RefUpdate{{Name: "refs/heads/main", Old: zeros, New: some},
		{Name: "refs/notes/x", Old: some, New: zeros}}
	commits := map[string]Commits{"refs/heads/main": {Total: 1, List: []Commit{{
		ID: some, Message: "Fix", Timestamp: "2025-05-01T02:48:57.000Z", Author: Person{"A", "a@b"},
		Committer: Person{"C", "c@d"}, Parents: []string{},
	}}}}
	pushed := Pushed(stamp, repo, push, commits)
	for _, c := range []struct {
		event                 records.Event
		kind, source, payload string
	}{
		{Created(stamp, repo), "created", "artifacts", `{` + repoText + `}`},
		{Deleted(stamp, repo), "deleted", "artifacts", `{` + repoText + `}`},
		{Forked(stamp, repo, fork), "forked", "artifacts",
			`{"namespace":"target-namespace","repoName":"target-repo","repoId":"5ank","defaultBranch":"main",` +
				`"description":null,"readOnly":true,"createdAt":"2026-05-18T15:53:46.833Z","updatedAt":"2026-05-18T15:53:46.833Z","lastPushAt":"2026-05-18T15:53:46.833Z"}`},
		{Imported(stamp, repo, "https://example.com/r.git", "main"), "imported", "artifacts",
			`{` + repoText + `,"sourceUrl":"https://example.com/r.git","branch":"main"}`},
		{pushed[0], "pushed", "artifacts.repo", `{"ref":"refs/heads/main","before":"` + zeros + `","after":"` + some +
			`","commits":[{"id":"` + some +
			`","message":"Fix","messageTruncated":false,"timestamp":"2025-05-01T02:48:57.000Z","author":{"name":"A","email":"a@b"},` +
			`"committer":{"name":"C","email":"c@d"},"parents":[]}],"totalCommitsCount":1,"commitsTruncated":false}`},
		{pushed[1], "pushed", "artifacts.repo", `{"ref":"refs/notes/x","before":"` + some + `","after":"` + zeros +
			`","commits":[],"totalCommitsCount":0,"commitsTruncated":false}`},
		{Cloned(stamp, repo), "cloned", "artifacts.repo", `{}`},
		{Fetched(stamp, repo), "fetched", "artifacts.repo", `{}`},
		{TokenCreated(stamp, repo, token), "token.created", "artifacts.repo",
			`{"tokenId":"7ngdf3ww3u84t33x","scope":"read","expiresAt":"2026-05-20T16:58:14.548Z"}`},
		{TokenRevoked(stamp, repo, token.ID), "token.revoked", "artifacts.repo", `{"tokenId":"7ngdf3ww3u84t33x"}`},
	} {
		want := `{"type":"cf.artifacts.repo.` + c.kind + `","source":{"type":"` + c.source +
			`","namespace":"my-namespace","repoName":"my-repo"},"payload":` + c.payload +
			`,"metadata":{"accountId":"f9f79265f388666de8122cfb508d7776","eventSubscriptionId":"SUB","eventSchemaVersion":1,` +
			`"eventTimestamp":"2026-05-18T15:53:48.187Z"},"actor":{"tokenId":"tok","label":"agent 7"}}`
		got, err := ForSubscription(c.event.Body, "SUB")
		if err != nil || string(got) != want {
			t.Errorf("event %s (%v):\ngot  %s\nwant %s", c.kind, err, got, want)
		}
		if c.event.Type != "cf.artifacts.repo."+c.kind || c.event.Namespace != "my-namespace" || c.event.Repo != "my-repo" ||
			!c.event.Time.Equal(stamp.Time) {
			t.Errorf("record of event %s: got %+v", c.kind, c.event)
		}
	}
}

func TestEventsWithoutATokenHaveNoActor(t *testing.T) {
	var b map[string]any
	if err := json.Unmarshal(Cloned(Stamp{Account: "a", Time: stamp.Time}, repo).Body, &b); err != nil {
		t.Fatal(err)
	}
	if _, ok := b["actor"]; ok {
		t.Errorf("event has an actor: %v", b)
	}
	if id := b["metadata"].(map[string]any)["eventSubscriptionId"].(string); len(id) != 32 {
		t.Errorf("eventSubscriptionId = %q, want 32 digits", id)
	}
}
