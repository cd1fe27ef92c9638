package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// after returns a handler that runs the backend and sends the first n bytes of its response, and then calls act, which
// may wait, or end the connection by panicking with http.ErrAbortHandler.
func after(n int, times int64, act func(*http.Request)) func(http.ResponseWriter, *http.Request, http.Handler) {
	var seen atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		b := rec.Body.Bytes()
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		if !bytes.Contains(b, []byte("packfile")) || seen.Add(1) > times {
			w.Write(b)
			return
		}
		w.Write(b[:min(n, len(b))])
		w.(http.Flusher).Flush()
		act(r)
	}
}

func hangUp(*http.Request) { panic(http.ErrAbortHandler) }

// waitForClient waits until the client closes the connection.
func waitForClient(r *http.Request) { <-r.Context().Done() }

func TestCutInPack(t *testing.T) {
	s, fx := webRepo(t)
	want := FetchRequest{Wants: []object.ID{fx.blobs["noise"]}}
	for _, n := range []int{4, 13, 14, 18, 19, 1000, 200_000} {
		s.set(after(n, 1<<60, hangUp))
		r := openRemote(t, s.URL+"/r", Options{})
		res, err := r.Fetch(t.Context(), want)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Pack)
			res.Pack.Close()
		}
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("response cut after %d bytes: got %v", n, err)
		}
	}
	// If a response ends before the first byte of the pack, the request is repeated.
	s.set(after(17, 1, hangUp))
	r := openRemote(t, s.URL+"/r", Options{Retries: 1})
	res, err := r.Fetch(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	unpack(t, fx.format, res.Pack)
}

func TestStall(t *testing.T) {
	s, fx := webRepo(t)
	want := FetchRequest{Wants: []object.ID{fx.blobs["noise"]}}
	const stall = 300 * time.Millisecond
	for _, n := range []int{0, 10, 100_000} {
		s.set(after(n, 1<<60, waitForClient))
		r := openRemote(t, s.URL+"/r", Options{Stall: stall})
		begun := time.Now()
		res, err := r.Fetch(t.Context(), want)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Pack)
			res.Pack.Close()
		}
		if d := time.Since(begun); !errors.Is(err, ErrStalled) || d < stall || d > 20*time.Second {
			t.Errorf("response stalled after %d bytes: fetch took %v and returned %v", n, d, err)
		}
	}
}

// TestSlowReader checks that the time between two reads does not count as a stall, but the time for which a read waits
// does.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		var all watches
		w := all.add(t.Context(), time.Second, func() { in.Close() })
		defer w.release()
		stream := &watched{r: in, w: w}
		go out.Write([]byte("abc"))
		for range 3 {
			if n, err := stream.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("Read = %d, %v", n, err)
			}
			time.Sleep(time.Hour)
		}
		begun := time.Now()
		if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, ErrStalled) || time.Since(begun) != time.Second {
			t.Errorf("Read after %v: got %v", time.Since(begun), err)
		}
	})
}

// TestQuiet checks that Quiet returns for how long the present read has waited for a byte, so that a slow stream is
// never quiet for long.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		var all watches
		w := all.add(t.Context(), time.Minute, func() { in.Close() })
		defer w.release()
		stream := &watched{r: in, w: w}
		quiet := func(when string, want time.Duration) {
			t.Helper()
			if got := all.quiet(time.Now()); got != want {
				t.Errorf("quiet %s: got %v, want %v", when, got, want)
			}
		}
		quiet("before a read", 0)
		go io.Copy(io.Discard, stream)
		for range 20 {
			time.Sleep(2 * time.Second)
			synctest.Wait()
			quiet("2 s after a byte", 2*time.Second)
			out.Write([]byte("x"))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		quiet("5 s after the last byte", 5*time.Second)
		out.Close()
		synctest.Wait()
		quiet("after the end", 0)
	})
}

func TestStalledBeforeHeaders(t *testing.T) {
	s, _ := webRepo(t)
	s.set(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	r := openRemote(t, s.URL+"/r", Options{Stall: 100 * time.Millisecond})
	if _, err := r.Refs(t.Context(), nil); !errors.Is(err, ErrStalled) {
		t.Error(err)
	}
}

// TestCancelBlockedRead checks that a reader returns at once when it is interrupted, even from a blocked Read.
func TestCancelBlockedRead(t *testing.T) {
	s, fx := webRepo(t)
	s.set(after(100_000, 1<<60, waitForClient))
	r := openRemote(t, s.URL+"/r", Options{})
	cause := errors.New("interrupted")
	for _, closeInstead := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		res, err := r.Fetch(ctx, FetchRequest{Wants: []object.ID{fx.blobs["noise"]}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, res.Pack)
			done <- err
		}()
		want := cause
		if closeInstead {
			want = errAborted
			res.Pack.Close()
		} else {
			cancel(cause)
		}
		select {
		case err := <-done:
			if !errors.Is(err, want) && !errors.Is(err, context.Canceled) {
				t.Errorf("Read returns %v, want %v", err, want)
			}
			if errors.Is(err, ErrUnreachable) {
				t.Errorf("error of an interrupted read is classified as a fault: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("Read did not return after the interrupt")
		}
		res.Pack.Close()
		cancel(nil)
	}
}

// fakeDaemon answers git:// requests with fixed texts, one per connection.
func fakeDaemon(t *testing.T, answers ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quit := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for _, a := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Read(make([]byte, 4096))
			io.WriteString(c, a)
			if strings.HasSuffix(a, "0000") { // the advertisement is complete: read the command, then hang up
				c.Read(make([]byte, 4096))
			}
			if strings.HasSuffix(a, "...") {
				<-quit
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { close(quit); l.Close(); <-gone })
	return "git://" + l.Addr().String() + "/r"
}

func packets(lines ...string) string {
	var b []byte
	for _, l := range lines {
		b = pktline.AppendLine(b, l)
	}
	return string(b)
}

const v2 = "000eversion 2\n000cls-refs\n000afetch\n0000"

func TestHostileDialogues(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   error
	}{
		"nothing":       {"", ErrUnreachable},
		"refused":       {packets("ERR access denied or repository not exported: /r"), ErrNotFound},
		"version 0":     {packets(strings.Repeat("1", 40) + " HEAD\x00multi_ack"), ErrNoV2},
		"version 1":     {packets("version 1"), ErrNoV2},
		"empty v0":      {"0000", ErrNoV2},
		"garbage":       {"HTTP/1.1 400 Bad Request\r\n", errProtocol},
		"giant":         {"fff1", errProtocol},
		"cut":           {v2[:20], ErrUnreachable},
		"silence":       {v2[:20] + "...", ErrStalled},
		"hangs up":      {v2, ErrUnreachable},
		"no fetch":      {packets("version 2", "ls-refs") + "0000", errProtocol},
		"odd format":    {packets("version 2", "ls-refs", "fetch", "object-format=md5") + "0000", errProtocol},
		"unknown rules": {packets("version 2", "a b"), errProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			var o Options
			if errors.Is(c.want, ErrStalled) {
				o.Stall, o.Connect = 250*time.Millisecond, 250*time.Millisecond
			}
			r := openRemote(t, fakeDaemon(t, c.answer, c.answer), o)
			if _, err := r.Refs(t.Context(), nil); !errors.Is(err, c.want) {
				t.Errorf("got error %v, want %v", err, c.want)
			}
		})
	}
}

func TestErrorsInPack(t *testing.T) {
	id := object.MustID(strings.Repeat("ab", 20))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			io.WriteString(w, v2)
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		parts := map[string]string{
			"1": "000dpackfile\n" + "0009\x01PACK" + "000a\x03sorry0000",
			"2": "000dpackfile\n" + "0005\x01" + "0007\x02ok" + "0009\x01PACK" + "0005\x01" + "0000",
			"3": "000dpackfile\n" + "0009\x09PACK0000",
			"4": "000dpackfile\n" + "0009\x01PACK0001",
			"5": packets("ERR upload-pack: not our ref " + id.String()),
			"6": packets("ERR Repository is\x1b[31m on fire"),
			"7": "000dpackfile\n0000",
			"8": packets("shallow-info", "shallow "+id.String()) + "0001" + "000dpackfile\n0009\x01PACK0000",
		}
		io.WriteString(w, parts[r.URL.Path[1:2]])
	}))
	defer s.Close()
	read := func(n int) (string, *FetchResponse, error) {
		r := openRemote(t, s.URL+"/"+strconv.Itoa(n), Options{})
		res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{id}})
		if err != nil {
			return "", nil, err
		}
		defer res.Pack.Close()
		b, err := io.ReadAll(res.Pack)
		return string(b), res, err
	}
	var said remoteError
	if b, _, err := read(1); b != "PACK" || !errors.As(err, &said) || said.text != "sorry" {
		t.Errorf("side band 3: got %q, %v", b, err)
	}
	if b, _, err := read(2); b != "PACK" || err != nil {
		t.Errorf("empty packets and progress: got %q, %v", b, err)
	}
	for _, n := range []int{3, 4} {
		if _, _, err := read(n); !errors.Is(err, errProtocol) {
			t.Errorf("case %d: got %v", n, err)
		}
	}
	var refused NotOurRef
	if _, _, err := read(5); !errors.As(err, &refused) || refused.ID != id {
		t.Errorf("error \"not our ref\" of the server: got %v", err)
	}
	if _, _, err := read(6); err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error with control characters: got %q", err)
	}
	if _, _, err := read(7); err == nil {
		t.Error("an empty pack was accepted")
	}
	if b, res, err := read(8); b != "PACK" || err != nil || len(res.Shallow) != 1 || res.Shallow[0] != id {
		t.Errorf("response with shallow info: got %q, %+v, %v", b, res, err)
	}
}

// TestCancelWhileAnotherConnects checks that if two callers wait for one request for capabilities, the cancellation of
// one does not affect the other.
func TestCancelWhileAnotherConnects(t *testing.T) {
	s, _ := webRepo(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if r.Method == http.MethodGet {
			close(arrived)
			<-release
		}
		h.ServeHTTP(w, r)
	})
	r := openRemote(t, s.URL+"/r", Options{})
	first := make(chan error, 1)
	go func() {
		_, err := r.Capabilities(context.Background())
		first <- err
	}()
	<-arrived
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Refs(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled caller: got %v", err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("the other caller: got %v", err)
	}
}

func TestLocalPathIsNoRepository(t *testing.T) {
	for _, base := range []string{"file://", ""} {
		r := openRemote(t, base+filepath.Join(t.TempDir()), Options{})
		if _, err := r.Refs(t.Context(), nil); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	}
}
