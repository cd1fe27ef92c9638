package githttp

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/records"
)

// Types of entries in packs (gitformat-pack(5)).
const (
	commitEntry, treeEntry, blobEntry, refDelta = 1, 2, 3, 7
)

// pack makes a pack that git itself would not write.
type pack struct {
	entries bytes.Buffer
	n       int
}

func newPack() *pack { return &pack{} }

// add adds an entry with a type, the size that its header states, the base of a delta, and contents.
func (p *pack) add(kind, size int, base string, contents []byte) *pack {
	b := byte(kind<<4 | size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.entries.WriteByte(b | 0x80)
		b = byte(size & 0x7f)
	}
	p.entries.WriteByte(b)
	if base != "" {
		id, err := hex.DecodeString(base)
		if err != nil {
			panic(err)
		}
		p.entries.Write(id)
	}
	z := zlib.NewWriter(&p.entries)
	z.Write(contents)
	z.Close()
	p.n++
	return p
}

func (p *pack) object(kind int, contents string) *pack {
	return p.add(kind, len(contents), "", []byte(contents))
}

func (p *pack) bytes() []byte {
	b := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(p.n))
	b = append(b, p.entries.Bytes()...)
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

func id(kind, contents string) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(fmt.Sprintf("%s %d\x00%s", kind, len(contents), contents))))
}

// tree returns the contents of a git tree that has the blob file under each name.
func tree(file string, names ...string) string {
	var b strings.Builder
	raw, _ := hex.DecodeString(file)
	for _, name := range names {
		fmt.Fprintf(&b, "100644 %s\x00%s", name, raw)
	}
	return b.String()
}

const person = "a <a@b> 1700000000 +0000"

func commit(tree string) string {
	return "tree " + tree + "\nauthor " + person + "\ncommitter " + person + "\n\nm\n"
}

// varint returns a size as it is encoded in the header of a delta.
func varint(n int) (b []byte) {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// copies returns a delta that consists of n copies of the whole base, which has 0xffffff bytes.
func copies(n int) []byte {
	const size = 0xffffff
	b := append(varint(size), varint(n*size)...)
	for range n {
		b = append(b, 0xf0, 0xff, 0xff, 0xff)
	}
	return b
}

// pushBody returns the body of a push request.
func pushBody(pack []byte, commands ...string) []byte {
	var b []byte
	for i, c := range commands {
		if i == 0 {
			c += "\x00 report-status side-band-64k object-format=sha1 agent=test"
		}
		b = pktline.AppendLine(b, c)
	}
	return append(pktline.AppendFlush(b), pack...)
}

// send sends the body of a push. It returns the status if it is not 200, and the text of all side bands.
func (w *world) send(repo, token string, body []byte) string {
	w.t.Helper()
	status, _, answer := w.get("POST", "/git/ns/"+repo+".git/git-receive-pack", "Bearer "+token, body,
		"Content-Type", "application/x-git-receive-pack-request")
	if status != http.StatusOK {
		return fmt.Sprintf("%d %s", status, answer)
	}
	var text strings.Builder
	packets := pktline.NewReader(strings.NewReader(answer), 1000)
	for {
		_, data, err := packets.Next()
		if err != nil {
			return text.String()
		}
		if len(data) > 0 {
			text.Write(data[1:])
		}
	}
}

func TestHostilePacks(t *testing.T) {
	w := newWorld(t, Limits{})
	w.git.git.Memory = 512 << 20
	repo, _ := w.repo("r", "sha1")
	_, token := w.token(records.Token{RepoID: repo.ID})
	blob := id("blob", "x")
	withTree := func(contents string) (*pack, string) {
		c := commit(id("tree", contents))
		return newPack().object(blobEntry, "x").object(treeEntry, contents).object(commitEntry, c), id("commit", c)
	}
	good, tip := withTree(tree(blob, "file"))
	damaged := good.bytes()
	damaged[len(damaged)-1] ^= 1
	zeros := bytes.Repeat([]byte{0}, 0xffffff)
	base := id("blob", string(zeros))
	huge := func(kind, n int) *pack { // returns a pack of a few KB
		p := newPack()
		return p.add(kind, n, "", bytes.Repeat([]byte{0}, 1<<20))
	}
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for _, c := range []struct {
		name string
		pack []byte
		tip  string
		want string
	}{
		{"no pack", nil, tip, "unpack eof before pack header"},
		{"no pack header", []byte("PACKET"), tip, "unpack"},
		{"truncated", good.bytes()[:60], tip, "early EOF"},
		{"wrong checksum", damaged, tip, "pack is corrupted (SHA1 mismatch)"},
		{"missing tree", newPack().object(commitEntry, commit(id("tree", "none"))).bytes(),
			id("commit", commit(id("tree", "none"))),
			"did not receive expected object"},
		{"missing tip", newPack().bytes(), tip, "missing necessary objects"},
		{"base of a delta is missing", newPack().add(refDelta, 4, a, []byte("\x01\x01\x01x")).bytes(), tip,
			"unresolved delta"},
		{"cycle of deltas", newPack().add(refDelta, 5, a, []byte("\x01\x01\x01x!")).add(refDelta, 5, b,
			[]byte("\x01\x01\x01y!")).bytes(), tip,
			"unresolved deltas"},
		{"size is wrong", newPack().add(blobEntry, 100, "", []byte("x")).bytes(), tip, "pack has bad object"},
		{"size is huge", huge(treeEntry, 3<<30).bytes(), tip, "unpacker error"},
		{"bomb", newPack().object(blobEntry, string(zeros)).add(refDelta, len(copies(255)), base, copies(255)).bytes(), base,
			"Out of memory"},
		{"bytes behind the pack", append(good.bytes(), "more"...), tip, ""},
	} {
		before := w.packs()
		got := w.send("r", token,
			pushBody(c.pack, strings.Repeat("0", 40)+" "+c.tip+" refs/heads/"+strings.ReplaceAll(c.name, " ", "-")))
		if len(c.pack) > 1<<20 {
			t.Errorf("%s: the pack has %d bytes", c.name, len(c.pack))
		}
		if c.want == "" {
			continue
		}
		if !strings.Contains(got, c.want) || !strings.Contains(got, "ng refs/heads/") {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if after := w.packs(); after != before {
			t.Errorf("%s: %d packs are stored, before %d", c.name, after, before)
		}
	}
	for name, contents := range map[string]string{
		"hasDotgit": tree(blob, ".git"), "hasDotdot": tree(blob, ".."), "hasDot:": tree(blob, "."),
		"treeNotSorted":    tree(blob, "b", "a"),
		"duplicateEntries": tree(blob, "a", "a"), "fullPathname": tree(blob, "a/b"),
		"nullSha1":   tree(strings.Repeat("0", 40), "a"),
		"hasDotgit.": tree(blob, "GIT~1"), "emptyName": tree(blob, ""),
	} {
		before := w.packs()
		p, tip := withTree(contents)
		got := w.send("r", token, pushBody(p.bytes(), strings.Repeat("0", 40)+" "+tip+" refs/heads/tree"))
		if !strings.Contains(got, strings.TrimRight(name, ".:")) && !strings.Contains(got, "too-short tree") &&
			!strings.Contains(got, "empty filename") {
			t.Errorf("tree with %s: got %q", name, got)
		}
		if after := w.packs(); after != before || !strings.Contains(got, "ng refs/heads/tree") {
			t.Errorf("tree with %s: %d packs are stored, before %d: %q", name, after, before, got)
		}
	}
	for _, ref := range []string{
		"refs/heads/a b", "refs/heads/..", "refs/heads/a.lock", "refs/heads/a\x01", "refs/heads//a", "refs/heads/.a", "HEAD",
		"../x", "refs/heads/a\tb",
		"refs/heads/" + strings.Repeat("x", 300) + "/.git/../config",
	} {
		got := w.send("r", token, pushBody(good.bytes(), strings.Repeat("0", 40)+" "+tip+" "+ref))
		if want := map[bool]string{true: "", false: " funny refname"}[strings.Contains(ref, " ")]; !strings.Contains(got,
			"ng "+ref+want) {
			t.Errorf("ref %q: got %q", ref, got)
		}
	}
	if refs := w.refs(repo); len(refs) > 1 {
		t.Errorf("refs after hostile pushes: %v", refs)
	}
	for _, body := range []string{"", "0001", "00", "000g", "0009hello", "ffff", "0032" + strings.Repeat("x", 46)} {
		if got := w.send("r", token, []byte(body)); !strings.HasPrefix(got, "400 ") {
			t.Errorf("body %q: got %q, want 400", body, got)
		}
	}
	if got := w.send("r", token, []byte("0000")); got != "" {
		t.Errorf("push without commands: got %q", got)
	}
	if got := w.send("r", token, pushBody(good.bytes(),
		strings.Repeat("0", 40)+" "+tip+" refs/heads/good")); !strings.Contains(got, "ok refs/heads/good") {
		t.Errorf("good push after hostile ones: %q", got)
	}
	w.quiet()
}

// TestPushThatNeedsMuchWork checks that git is ended during a small push that keeps a processor busy, that the client
// gets the reason in git's report, and that nothing is left of the push.
func TestPushThatNeedsMuchWork(t *testing.T) {
	w := newWorld(t, Limits{Work: 200 * time.Millisecond})
	repo, _ := w.repo("r", "sha1")
	_, token := w.token(records.Token{RepoID: repo.ID})
	const size = 0xffffff
	zeros := strings.Repeat("\x00", size)
	base := id("blob", zeros)
	p := newPack().object(blobEntry, zeros)
	for n := range byte(100) { // each object is the base and one more byte
		delta := append(varint(size), varint(size+1)...)
		p.add(refDelta, len(delta)+6, base, append(delta, 0xf0, 0xff, 0xff, 0xff, 1, n))
	}
	got := w.send("r", token, pushBody(p.bytes(), strings.Repeat("0", 40)+" "+base+" refs/tags/bomb"))
	if want := "unpack " + errWork.Error(); !strings.Contains(got, want) ||
		!strings.Contains(got, "ng refs/tags/bomb unpacker error") {
		t.Errorf("push of %d bytes: got %q, want %q", p.entries.Len(), got, want)
	}
	w.quiet()
	if n, refs := w.packs(), w.refs(repo); n != 0 || len(refs) != 0 {
		t.Errorf("after the push: got %d packs and the refs %v, want none", n, refs)
	}
	if l := (Limits{}).complete(1); l.work(1<<20) != time.Minute+2*time.Second {
		t.Errorf("processor time for a push of 1 MiB: got %v", l.work(1<<20))
	}
}

// incompressible is a pack with one blob of 5,000 random bytes.
var incompressible = func() []byte {
	b := make([]byte, 5000)
	rand.NewChaCha8([32]byte{}).Read(b)
	return newPack().object(blobEntry, string(b)).bytes()
}()

// transfer is a push whose client has sent a part of the body and keeps the connection open.
type transfer struct {
	conn net.Conn
	done chan string // receives the answer
}

// open begins a push, and sends the first part of the pack.
func (w *world) open(token string) *transfer {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.http.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn,
		"POST /git/ns/r.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-receive-pack-request\r\n"+
			"Authorization: Bearer %s\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n", token)
	x := &transfer{conn, make(chan string, 1)}
	x.send(pushBody(incompressible[:20], strings.Repeat("0", 40)+" "+strings.Repeat("1", 40)+" refs/heads/x"))
	go func() {
		answer, err := io.ReadAll(conn)
		x.done <- fmt.Sprint(string(answer), err)
	}()
	return x
}

// send sends one chunk of the body.
func (x *transfer) send(b []byte) { fmt.Fprintf(x.conn, "%x\r\n%s\r\n", len(b), b) }

// running waits until git runs for the push.
func (w *world) running() {
	w.t.Helper()
	await.Until(w.t, "git runs for the push", func() bool { return len(w.processes()) >= 2 })
}

func TestInterruptedTransfers(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	record, token := w.token(records.Token{RepoID: repo.ID})
	x := w.open(token)
	w.running()
	if err := w.guard.Revoke(t.Context(), record.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if got := await.Receive(t, x.done); !strings.Contains(got, " 403 ") ||
		!strings.Contains(got, "Invalid or expired token") {
		t.Errorf("push with a token that is revoked: got %q", got)
	}
	w.quiet()
	_, token = w.token(records.Token{RepoID: repo.ID})
	x = w.open(token)
	w.running()
	x.conn.Close()
	await.Receive(t, x.done)
	w.quiet()

	w.git.limits.Idle = 50 * time.Millisecond
	x = w.open(token)
	if got := await.Receive(t, x.done); !strings.Contains(got, "408 ") {
		t.Errorf("client that stops sending: got %q", got)
	}
	w.quiet()
	w.git.limits.Idle, w.git.limits.Time = time.Minute, 100*time.Millisecond
	x = w.open(token)
	if got := await.Receive(t, x.done); !strings.Contains(got, "408 ") {
		t.Errorf("push that takes too long: got %q", got)
	}
	w.quiet()
	w.git.limits.Time = time.Hour
	w.git.limits.Push = 200
	x = w.open(token)
	x.send(incompressible[20:1000])
	if got := await.Receive(t, x.done); !strings.Contains(got, "413 ") {
		t.Errorf("push that is too large: got %q", got)
	}
	w.quiet()
	w.git.limits.Push = 1 << 30
	if refs := w.refs(repo); len(refs) != 0 {
		t.Errorf("refs after pushes that did not end: %v", refs)
	}
	w.do(w.work("sha1"), "push", "-q", url, "main")
}

func TestRevocationDuringFetch(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	random := make([]byte, 48<<20)
	for i := range random {
		random[i] = byte(i*i>>7 ^ i>>3)
	}
	w.do(work, "config", "core.compression", "0")
	id := w.commit(work, "large", string(random))
	w.do(work, "push", "-q", url, "main")
	record, token := w.token(records.Token{RepoID: repo.ID})
	for _, end := range []func(cancel context.CancelFunc){
		func(cancel context.CancelFunc) { cancel() },
		func(context.CancelFunc) { w.guard.Revoke(t.Context(), record.ID, nil, records.Cause{}) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		body := "0012command=fetch\n0001" + fmt.Sprintf("0032want %s\n", id) + "0009done\n0000"
		req, err := http.NewRequestWithContext(ctx, "POST", w.http.URL+"/git/ns/r.git/git-upload-pack",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		req.Header.Set("Git-Protocol", "version=2")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp.Status, err)
		}
		end(cancel)
		if n, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Errorf("a fetch that was ended has sent %d bytes, and an end", n)
		}
		resp.Body.Close()
		w.quiet()
	}
}
