package access

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/records"
)

// table is a database of tokens, which the tests change as another node would.
type table struct {
	mu     sync.Mutex
	tokens []records.Token
	polls  int
	err    error
}

func (t *table) ByHash(_ context.Context, hash []byte) (records.Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return records.Token{}, t.err
	}
	for _, token := range t.tokens {
		if bytes.Equal(token.Hash, hash) {
			return token, nil
		}
	}
	return records.Token{}, records.ErrNotFound
}

func (t *table) Revoke(_ context.Context, id string, _ []records.Event, _ records.Cause) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.tokens {
		if t.tokens[i].ID == id {
			t.tokens[i].Revoked = time.Now()
		}
	}
	return nil
}

func (t *table) Rotate(ctx context.Context, old string, next records.Token, events []records.Event,
	cause records.Cause) error {
	if err := t.Revoke(ctx, old, events, cause); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tokens = append(t.tokens, next)
	return nil
}

func (t *table) RevokedSince(_ context.Context, since time.Time) (ids []string, _ error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.polls++
	for _, token := range t.tokens {
		if !token.Revoked.Before(since) {
			ids = append(ids, token.ID)
		}
	}
	return ids, nil
}

// mint adds a token, and returns its record and its text.
func (t *table) mint(token records.Token) (records.Token, string) {
	token, text := Mint(token, time.Now())
	t.tokens = append(t.tokens, token)
	return token, text
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func request(authorization string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

func TestGit(t *testing.T) {
	db := &table{}
	repo := records.Repo{ID: "r1", Namespace: "ns"}
	day := time.Now().Add(24 * time.Hour)
	_, write := db.mint(records.Token{Role: records.RepoToken, RepoID: "r1", Namespace: "ns", Expires: day})
	_, read := db.mint(records.Token{Role: records.RepoToken, RepoID: "r1", Namespace: "ns", Scope: records.ReadScope,
		Expires: day})
	_, other := db.mint(records.Token{Role: records.RepoToken, RepoID: "r2", Namespace: "ns", Expires: day})
	_, expired := db.mint(records.Token{Role: records.RepoToken, RepoID: "r1", Namespace: "ns",
		Expires: time.Now().Add(-time.Second)})
	revoked, revokedText := db.mint(records.Token{Role: records.RepoToken, RepoID: "r1", Namespace: "ns", Expires: day})
	_, admin := db.mint(records.Token{Role: records.AdminToken})
	_, owner := db.mint(records.Token{Role: records.OwnerToken, Namespace: "ns"})
	_, stranger := db.mint(records.Token{Role: records.OwnerToken, Namespace: "other"})
	_, nobody := db.mint(records.Token{Role: records.OwnerToken})
	db.Revoke(t.Context(), revoked.ID, nil, records.Cause{})
	secret, _, _ := strings.Cut(write, "?")
	g := newGuard(db)
	for _, c := range []struct {
		name, header string
		read, write  error
	}{
		{"nothing", "", ErrMissing, ErrMissing},
		{"bearer", "Bearer " + write, nil, nil},
		{"bearer, secret only", "bearer " + secret, nil, nil},
		{"basic", basic("x", write), nil, nil},
		{"basic, secret only", basic("x", secret), nil, nil},
		{"basic, no user", basic("", secret), nil, nil},
		{"basic, percent-encoded", basic("x", url.QueryEscape(write)), nil, nil},
		{"basic, percent-encoded, lower case", basic("x", secret+"%3fexpires%3d1"), nil, nil},
		{"another time in the text", "Bearer " + secret + "?expires=1", nil, nil},
		{"no time in the text", "Bearer " + secret + "?expires=", ErrInvalid, ErrInvalid},
		{"something behind the secret", "Bearer " + secret + "?x=1", ErrInvalid, ErrInvalid},
		{"secret as user", basic(secret, ""), ErrInvalid, ErrInvalid},
		{"no password", "Basic " + base64.StdEncoding.EncodeToString([]byte(secret)), ErrInvalid, ErrInvalid},
		{"not base64", "Basic ***", ErrInvalid, ErrInvalid},
		{"another scheme", "Digest " + secret, ErrInvalid, ErrInvalid},
		{"unknown", "Bearer art_v1_" + strings.Repeat("0", 40), ErrInvalid, ErrInvalid},
		{"upper case", "Bearer " + strings.ToUpper(secret), ErrInvalid, ErrInvalid},
		{"read", "Bearer " + read, nil, ErrInsufficient},
		{"other repository", "Bearer " + other, ErrInvalid, ErrInvalid},
		{"expired", "Bearer " + expired, ErrInvalid, ErrInvalid},
		{"revoked", "Bearer " + revokedText, ErrInvalid, ErrInvalid},
		{"admin", basic("admin", admin), nil, nil},
		{"owner", "Bearer " + owner, nil, nil},
		{"owner of another namespace", "Bearer " + stranger, ErrInvalid, ErrInvalid},
		{"owner of no namespace", "Bearer " + nobody, ErrInvalid, ErrInvalid},
	} {
		if _, err := g.Git(t.Context(), request(c.header), repo, records.ReadScope); err != c.read {
			t.Errorf("%s: read: got %v, want %v", c.name, err, c.read)
		}
		if _, err := g.Git(t.Context(), request(c.header), repo, records.WriteScope); err != c.write {
			t.Errorf("%s: write: got %v, want %v", c.name, err, c.write)
		}
	}
	r := request("Bearer " + write)
	r.Header.Add("Authorization", "Bearer "+read)
	if _, err := g.Git(t.Context(), r, repo, records.ReadScope); err != ErrInvalid {
		t.Errorf("two credentials: got %v, want %v", err, ErrInvalid)
	}
	if _, err := g.Git(t.Context(), request("Bearer "+write), records.Repo{Namespace: "ns"},
		records.ReadScope); err != ErrInvalid {
		t.Errorf("token of a repository for a missing one: got %v, want %v", err, ErrInvalid)
	}
	for _, text := range []string{admin, owner} {
		if _, err := g.Git(t.Context(), request("Bearer "+text), records.Repo{Namespace: "ns"},
			records.ReadScope); err != nil {
			t.Errorf("token %.9s for a missing repository: got %v, want nil", text, err)
		}
	}
	db.err = records.ErrUnavailable
	if _, err := g.Git(t.Context(), request("Bearer "+write), repo, records.ReadScope); !errors.Is(err,
		records.ErrUnavailable) {
		t.Errorf("without database: got %v, want %v", err, records.ErrUnavailable)
	}
}

func TestAdmin(t *testing.T) {
	db := &table{}
	_, admin := db.mint(records.Token{Role: records.AdminToken})
	_, auditor := db.mint(records.Token{Role: records.AdminToken, Scope: records.ReadScope})
	_, owner := db.mint(records.Token{Role: records.OwnerToken, Namespace: "ns"})
	_, repo := db.mint(records.Token{Role: records.RepoToken, RepoID: "r1", Namespace: "ns",
		Expires: time.Now().Add(time.Hour)})
	g := newGuard(db)
	for _, c := range []struct {
		name, text, needs string
		scope             records.Scope
		want              error
	}{
		{"admin", admin, "", records.WriteScope, nil},
		{"admin", admin, "ns", records.WriteScope, nil},
		{"auditor", auditor, "", records.ReadScope, nil},
		{"auditor", auditor, "ns", records.WriteScope, ErrInsufficient},
		{"owner", owner, "ns", records.WriteScope, nil},
		{"owner", owner, "other", records.ReadScope, ErrInsufficient},
		{"owner", owner, "", records.ReadScope, ErrInsufficient},
		{"token of a repository", repo, "ns", records.ReadScope, ErrInvalid},
	} {
		if _, err := g.Admin(t.Context(), request("Bearer "+c.text), c.needs, c.scope); err != c.want {
			t.Errorf("%s, %s of %q: got %v, want %v", c.name, c.scope, c.needs, err, c.want)
		}
	}
}

func TestMint(t *testing.T) {
	expires := time.Unix(1900000000, 0)
	a, text := Mint(records.Token{Role: records.RepoToken, Expires: expires, Label: "x"}, time.Now())
	if !strings.HasPrefix(text, "art_v1_") || !strings.HasSuffix(text, "?expires=1900000000") || len(text) != 7+40+19 {
		t.Errorf("text of a token: %q", text)
	}
	if a.ID == "" || a.Label != "x" || a.Created.IsZero() || a.Scope != records.WriteScope ||
		bytes.Contains(a.Hash, []byte(text[7:47])) {
		t.Errorf("record of a token: %+v", a)
	}
	if b, again := Mint(records.Token{Role: records.RepoToken, Expires: expires}, time.Now()); again == text ||
		b.ID == a.ID {
		t.Error("two tokens are equal")
	}
	for role, prefix := range map[records.Role]string{records.AdminToken: "afs_admin_", records.OwnerToken: "afs_owner_"} {
		if _, text := Mint(records.Token{Role: role}, time.Now()); !strings.HasPrefix(text, prefix) ||
			len(text) != len(prefix)+40 {
			t.Errorf("text of a token of role %s: %q", role, text)
		}
	}
}

func TestWatch(t *testing.T) {
	db := &table{}
	here, _ := db.mint(records.Token{Role: records.RepoToken})
	there, _ := db.mint(records.Token{Role: records.RepoToken})
	other, _ := db.mint(records.Token{Role: records.RepoToken})
	rotated, _ := db.mint(records.Token{Role: records.RepoToken})
	soon, _ := db.mint(records.Token{Role: records.RepoToken, Expires: time.Now().Add(20 * time.Millisecond)})
	g := newGuard(db)
	g.every = time.Millisecond
	var ctxs []context.Context
	for _, token := range []records.Token{here, there, other, soon, rotated} {
		ctx, cancel := g.Watch(t.Context(), token)
		defer cancel()
		ctxs = append(ctxs, ctx)
	}
	ended := func(i int) bool { return context.Cause(ctxs[i]) == ErrInvalid }
	g.Revoke(t.Context(), here.ID, nil, records.Cause{})
	if !ended(0) {
		t.Error("a transfer continues after Revoke")
	}
	g.Rotate(t.Context(), rotated.ID, records.Token{}, nil, records.Cause{})
	if !ended(4) {
		t.Error("a transfer continues after Rotate")
	}
	db.Revoke(t.Context(), there.ID, nil, records.Cause{})
	await.Until(t, "transfer of a token that another node has revoked ends", func() bool { return ended(1) })
	await.Until(t, "transfer of a token that expires ends", func() bool { return ended(3) })
	if ctxs[2].Err() != nil {
		t.Errorf("transfer of a valid token: %v", context.Cause(ctxs[2]))
	}
}

func TestNoTransferNoLookUp(t *testing.T) {
	db := &table{}
	token, _ := db.mint(records.Token{Role: records.RepoToken})
	g := newGuard(db)
	g.every = time.Millisecond
	_, first := g.Watch(t.Context(), token)
	_, second := g.Watch(t.Context(), token)
	first()
	await.Until(t, "revoked tokens are looked up", func() bool { db.mu.Lock(); defer db.mu.Unlock(); return db.polls > 0 })
	second()
	second()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil || len(g.watched) != 0 {
		t.Errorf("after the last transfer: %d tokens are watched", len(g.watched))
	}
}

func FuzzCredentials(f *testing.F) {
	_, text := Mint(records.Token{Role: records.RepoToken, Expires: time.Unix(1900000000, 0)}, time.Now())
	for _, s := range []string{"Bearer " + text, basic("x", text), basic("", url.QueryEscape(text)), "Basic", "Bearer %",
		"Basic Og=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		secret, err := credentials([]string{header})
		if err != nil {
			if secret != "" {
				t.Errorf("%q: error %v with secret %q", header, err, secret)
			}
			return
		}
		if again, err := credentials([]string{basic("x", secret)}); again != secret || err != nil {
			t.Errorf("%q: secret %q is not a token: %v", header, secret, err)
		}
	})
}
