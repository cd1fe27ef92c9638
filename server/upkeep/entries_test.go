package upkeep

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// TestCacheEntriesExpire checks that the upkeep removes expired and damaged cache entries, and the oldest ones beyond
// the limit, with an audit entry and an event for each.
func TestCacheEntriesExpire(t *testing.T) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) { testCacheEntriesExpire(t, format) })
	}
}

func testCacheEntriesExpire(t *testing.T, format object.Format) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := New(Options{Records: b.DB, Objects: b.Objects, Replicas: b.Set, MaxEntries: 3000, Account: "account",
		Times: Times{Crowd: 100, Check: time.Hour, Grace: time.Hour, Unused: time.Hour, History: 24 * time.Hour}})
	r := b.Create(t, "repo", format)
	r.Write(t, "main", "file", "text")

	dir := t.TempDir()
	repo, err := session.OpenRepo(dir, session.RepoOptions{Format: format})
	do(t, err)
	defer repo.Close()
	start := time.Now()
	for i, e := range []struct {
		key string
		ttl time.Duration
	}{{"oldest", 0}, {"expired", time.Hour}, {"old", 0}, {"later", 48 * time.Hour}, {"new", 0}} {
		s := &cacheentry.Store{Place: cacheentry.Embedded{Repo: repo},
			Now: func() time.Time { return start.Add(time.Duration(i) * time.Second) }}
		value := []byte(strings.Repeat(e.key[:1], 1000))
		_, err := s.Put(t.Context(), cacheentry.PutRequest{Key: e.key, TTL: e.ttl, Actor: "agent",
			Value: cacheentry.Value{Size: 1000,
				Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(value)), nil }}})
		do(t, err)
	}
	_, err = gittest.Git(t.Context(), r.Path, "-c", "fetch.unpackLimit=1", "fetch", "--quiet", dir,
		"refs/afs/*:refs/afs/*")
	do(t, err)
	main, err := gittest.Git(t.Context(), r.Path, "rev-parse", "main")
	do(t, err)
	damaged := session.EntryPrefix + "00/" + strings.Repeat("0", 64)
	refs, err := gittest.Git(t.Context(), r.Path, "for-each-ref", "--format=%(refname) %(objectname)", session.EntryPrefix)
	do(t, err)
	for line := range strings.Lines(refs + "\n" + damaged + " " + main + "\n") {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		do(t, r.Update(t.Context(), name, "", id))
	}
	entries := func() (keys []string) {
		for _, ref := range snapshot(t, b, r.ID).Refs {
			for _, key := range []string{"oldest", "expired", "old", "later", "new"} {
				if ref.Name == cacheentry.Ref(key) {
					keys = append(keys, key)
				}
			}
			if ref.Name == damaged {
				keys = append(keys, "damaged")
			}
		}
		slices.Sort(keys)
		return keys
	}
	if got := fmt.Sprint(entries()); got != "[damaged expired later new old oldest]" {
		t.Fatalf("entries before: got %s", got)
	}
	w.now = func() time.Time { return start.Add(2 * time.Hour) }
	do(t, w.Round(t.Context()))
	if got := fmt.Sprint(entries()); got != "[later new old]" {
		t.Errorf("entries after two hours: got %s, want those that have not expired, up to the limit", got)
	}
	audit, err := b.DB.Audit.After(t.Context(), 0, 100)
	do(t, err)
	last := audit[len(audit)-1]
	if last.Cause.Actor != "upkeep" || last.Cause.Target != "ns/repo" ||
		strings.Count(last.Detail, session.EntryPrefix) != 3 {
		t.Errorf("audit entry: got %+v, want one of the upkeep with three refs", last)
	}
	stream, err := b.DB.Events.After(t.Context(), 0, "", "", 100)
	do(t, err)
	removed := 0
	for _, e := range stream {
		if strings.Contains(string(e.Body), session.EntryPrefix) {
			removed++
		}
	}
	if removed != 3 {
		t.Errorf("events of removed entries: got %d, want 3", removed)
	}
	w.now = func() time.Time { return start.Add(72 * time.Hour) }
	do(t, w.expire(t.Context(), r.ID))
	if got := fmt.Sprint(entries()); got != "[new old]" {
		t.Errorf("entries after three days: got %s, want those without a time", got)
	}
}
