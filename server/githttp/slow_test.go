package githttp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
)

// startSlowRequest begins a request to a service, sends a part of its body when the server reads it, and sends the
// answer to the channel later.
func (w *world) startSlowRequest(service, token, part string) (answer chan string) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.http.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn,
		"POST /git/ns/r.git/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-%[1]s-request\r\nConnection: close\r\n"+
			"Authorization: Bearer %s\r\nContent-Length: 10000000\r\nExpect: 100-continue\r\n\r\n", service, token)
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		w.t.Fatalf("got %q, %v, want the status 100", line, err)
	}
	if _, err := io.WriteString(conn, part); err != nil {
		w.t.Fatal(err)
	}
	answer = make(chan string, 1)
	go func() {
		text, err := io.ReadAll(r)
		answer <- fmt.Sprint(string(text), err)
	}()
	return answer
}

// places returns the number of running git processes that count against the limit.
func (w *world) places() int { return w.git.slots.Running() }

func TestSlowCommands(t *testing.T) {
	w := newWorld(t, Limits{Idle: time.Hour, Head: time.Hour})
	repo, _ := w.repo("r", "sha1")
	command := string(pushBody(nil, strings.Repeat("0", 40)+" "+strings.Repeat("1", 40)+" refs/heads/x"))
	command = strings.TrimSuffix(command, "0000")
	for _, c := range []struct {
		name, service, part string
		places              int
	}{
		{"push", receivePack, command[:10], 0},
		{"push with many commands", receivePack, strings.Repeat(command, 2*maxHead/len(command)), 1},
		{"fetch", uploadPack, "0011command=fetch", 0},
	} {
		record, token := w.token(records.Token{RepoID: repo.ID})
		answer := w.startSlowRequest(c.service, token, c.part)
		await.Until(t, c.name+" has its places", func() bool { return w.places() == c.places })
		if err := w.guard.Revoke(t.Context(), record.ID, nil, records.Cause{}); err != nil {
			t.Fatal(err)
		}
		if got := await.Receive(t, answer); !strings.Contains(got, " 403 ") ||
			!strings.Contains(got, "Invalid or expired token") {
			t.Errorf("%s with a token that is revoked: got %q", c.name, got)
		}
		w.quiet()
	}
	w.git.limits.Head = 100 * time.Millisecond
	_, token := w.token(records.Token{RepoID: repo.ID})
	for _, service := range []string{receivePack, uploadPack} {
		if got := await.Receive(t, w.startSlowRequest(service, token, "00")); !strings.Contains(got, " 408 ") {
			t.Errorf("%s that does not continue: got %q", service, got)
		}
		w.quiet()
	}
	// The time limit for the commands of a push does not limit the transfer of the pack.
	w.git.limits.Head = 2 * time.Second
	x := w.open(token)
	w.running()
	late := time.Now().Add(w.git.limits.Head)
	await.Until(t, "the time of the commands is over", func() bool { return time.Now().After(late) })
	x.send(incompressible[20:])
	io.WriteString(x.conn, "0\r\n\r\n")
	if got := await.Receive(t, x.done); !strings.Contains(got, " 200 ") {
		t.Errorf("slow pack after the commands: got %q", got)
	}
	w.quiet()
	if refs := w.refs(repo); len(refs) != 0 {
		t.Errorf("refs after pushes that failed: %v", refs)
	}
}

// TestSlowHeads checks that the server reads the beginnings of few fetches of one token at a time, that other tokens do
// not wait for them, and that a fetch that has begun needs no memory for what has not arrived.
func TestSlowHeads(t *testing.T) {
	w := newWorld(t, Limits{Idle: time.Hour, Head: time.Hour})
	repo, _ := w.repo("r", "sha1")
	w.git.heads = places.New(places.Options{Most: 2, MostOf: map[places.Kind]int{places.OfToken: 1}})
	record, token := w.token(records.Token{RepoID: repo.ID})
	_, other := w.token(records.Token{RepoID: repo.ID})
	slow := w.startSlowRequest(uploadPack, token, "0011command=fetch")
	fetch := func(token string) int {
		status, _, _ := w.get("POST", "/git/ns/r.git/git-upload-pack", "Bearer "+token, []byte("0000"), "Content-Type",
			"application/x-git-upload-pack-request")
		return status
	}
	if got := fetch(token); got != http.StatusServiceUnavailable {
		t.Errorf("second fetch of a token: got %d, want %d", got, http.StatusServiceUnavailable)
	}
	if got := fetch(other); got != http.StatusOK {
		t.Errorf("fetch of another token: got %d, want %d", got, http.StatusOK)
	}
	if err := w.guard.Revoke(t.Context(), record.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	await.Receive(t, slow)
	await.Until(t, "the place is free", func() bool { return w.git.heads.Running() == 0 })
	head, err := readHead(io.MultiReader(strings.NewReader("text"), failing{io.ErrUnexpectedEOF}))
	if err != nil || string(head) != "text" || cap(head) > 1<<10 {
		t.Errorf("beginning of a fetch: got %q with room for %d bytes, %v", head, cap(head), err)
	}
	if head, err := readHead(strings.NewReader(strings.Repeat("x", 2*maxHead))); err != nil || len(head) != maxHead {
		t.Errorf("beginning of a long fetch: got %d bytes, %v, want %d", len(head), err, maxHead)
	}
}

// failing fails with an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestSlowTransfers checks that a client that is slower than the minimum rate is disconnected, even if it is never
// silent for longer than Idle.
func TestSlowTransfers(t *testing.T) {
	w := newWorld(t, Limits{Idle: time.Hour, Head: time.Hour})
	repo, _ := w.repo("r", "sha1")
	_, token := w.token(records.Token{RepoID: repo.ID})
	w.git.limits.Grace = 200 * time.Millisecond
	got := await.Receive(t, w.open(token).done)
	if !strings.Contains(got, " 408 ") || !strings.Contains(got, "at least 2 KiB a second") {
		t.Errorf("slow push: got %q", got)
	}
	w.quiet()
	if refs := w.refs(repo); len(refs) != 0 {
		t.Errorf("refs after a push that was too slow: %v", refs)
	}
}

func TestPace(t *testing.T) {
	p := Limits{}.complete(1).newPace()
	for second := range 3600 { // 10 KB per second are sufficient, even with pauses
		if p.add(10_000, time.Now().Add(-time.Second)); p.left() <= 0 {
			t.Fatalf("a client that sends 10 KB a second is refused after %d s", second)
		}
	}
	p = Limits{}.complete(1).newPace()
	seconds := 0
	for ; p.left() > 0; seconds++ {
		p.add(250, time.Now().Add(-time.Second))
	}
	if seconds > 60 {
		t.Errorf("a client that sends 250 bytes a second is refused after %d s", seconds)
	}
}
