package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

const (
	logLimit  = 50
	logMax    = 1000
	sniffed   = 8 << 10          // number of bytes of a file that decide whether it is text
	smallFile = 64 << 10         // bytes of a file that is sent from memory
	patience  = 30 * time.Second // with a client that is slow, in addition to the time that it needs at slowBytes
	slowBytes = 64 << 10         // bytes a second that a client must be able to receive
)

// read calls a function that reads from the git directory of a repository.
func (c *call) read(ctx context.Context, r records.Repo, do func(gitread.Repo) error) error {
	return c.a.use(ctx, r, func(dir *replica.Replica) error {
		return do(c.a.git(dir.Dir))
	})
}

// use calls a function that needs the replica of a repository.
func (a *API) use(ctx context.Context, r records.Repo, do func(*replica.Replica) error) error {
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	dir, err := a.o.Replicas.Acquire(ctx, r.ID)
	if err != nil {
		return found("Repository", err)
	}
	defer dir.Release()
	return do(dir)
}

// git returns a reader of the objects of a git directory.
func (a *API) git(dir string) gitread.Repo {
	return gitread.Repo{Dir: dir, Git: a.o.Replicas.Git(), ShortNames: a.o.Compat, Pool: &a.pool}
}

// readJSON sends what a function reads from the git directory of the repository in the path. what names the object in errors.
func (c *call) readJSON(what string, do func(context.Context, gitread.Repo) (any, error)) error {
	ctx, cancel := c.context()
	defer cancel()
	r, err := c.ready()
	if err != nil {
		return err
	}
	var result any
	err = c.read(ctx, r, func(g gitread.Repo) (err error) {
		result, err = do(ctx, g)
		return found(what, err)
	})
	if err != nil {
		return err
	}
	c.count(r, meter.Read, 0)
	return c.send(http.StatusOK, result, nil)
}

// getLog lists commits. An unknown ref has none.
func getLog(c *call) error {
	q := c.query()
	ref := q.text("ref")
	limit := min(q.number("limit", logLimit, 1, -1), logMax)
	offset := q.number("offset", 0, 0, maxPage)
	if err := q.err(); err != nil {
		return err
	}
	if ref == "" {
		ref = "HEAD"
	}
	return c.readJSON("Repository", func(ctx context.Context, g gitread.Repo) (any, error) {
		list, err := g.Log(ctx, ref, offset, limit)
		if errors.Is(err, gitread.ErrNotFound) {
			return []gitread.Commit{}, nil
		}
		return list, err
	})
}

// hash returns the object id in the path, which must have the object format of the repository.
func (c *call) hash() (records.Repo, string, error) {
	r, err := c.ready()
	if err != nil {
		return r, "", err
	}
	id, digits, format := c.params["hash"], 40, "SHA-1"
	if r.ObjectFormat == "sha256" {
		digits, format = 64, "SHA-256"
	}
	if len(id) != digits || !object.ValidID(id) {
		return r, "", invalid("hash", "Invalid %s hash", format)
	}
	return r, id, nil
}

func getCommit(c *call) error {
	_, id, err := c.hash()
	if err != nil {
		return err
	}
	return c.readJSON("Commit", func(ctx context.Context, g gitread.Repo) (any, error) { return g.Commit(ctx, id) })
}

func getTree(c *call) error {
	_, id, err := c.hash()
	if err != nil {
		return err
	}
	return c.readJSON("Tree", func(ctx context.Context, g gitread.Repo) (any, error) {
		list, err := g.Tree(ctx, id)
		if other := (*gitread.TypeError)(nil); c.a.o.Compat && errors.As(err, &other) && other.Got == "commit" {
			return nil, &Fault{http.StatusInternalServerError, codeInternal, "A stored git object is corrupt.", ""}
		}
		return list, err
	})
}

func getBlob(c *call) error {
	r, id, err := c.hash()
	if err != nil {
		return err
	}
	return c.contents(r, "Blob", func(ctx context.Context, g gitread.Repo) (*gitread.Blob, error) { return g.Blob(ctx, id) }, binary)
}

func getFile(c *call) error {
	q := c.query()
	ref, path := q.required("ref"), q.required("path")
	if err := q.err(); err != nil {
		return err
	}
	return c.fileAt(ref, path, binary)
}

func getRaw(c *call) error { return c.fileAt(c.params["ref"], c.params["path"], sniff) }

func (c *call) fileAt(ref, path string, kind func(start []byte) string) error {
	r, err := c.ready()
	if err != nil {
		return err
	}
	return c.contents(r, "File", func(ctx context.Context, g gitread.Repo) (*gitread.Blob, error) { return g.File(ctx, ref, path) }, kind)
}

// binary is the type of contents that browsers do not show.
func binary([]byte) string { return bytesType }

// sniff returns the type of contents that begin with start: text if they are UTF-8 without NUL.
func sniff(start []byte) string {
	for len(start) > 0 {
		char, n := utf8.DecodeRune(start)
		switch {
		case char == utf8.RuneError && n == 1 && (len(start) >= utf8.UTFMax || utf8.FullRune(start)), char == 0:
			return bytesType
		case char == utf8.RuneError && n == 1: // a character at the end of start is cut off
			return textType
		}
		start = start[n:]
	}
	return textType
}

// contents sends a blob until the token is revoked. kind returns its type from its first bytes.
func (c *call) contents(r records.Repo, what string, open func(context.Context, gitread.Repo) (*gitread.Blob, error),
	kind func(start []byte) string) error {
	ctx, stop := c.a.o.Guard.Watch(c.r.Context(), c.token)
	defer stop()
	deadline(c.w, time.Time{}) // that of the server may be too short for a large file
	err := sendBlob(ctx, c, r, func(g gitread.Repo) (*gitread.Blob, error) {
		blob, err := open(ctx, g)
		return blob, found(what, err)
	}, kind)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// sendBlob sends a blob. Its start, which is all of most files, is read first, so that a client that reads slowly keeps no process.
func sendBlob(ctx context.Context, c *call, r records.Repo, open func(gitread.Repo) (*gitread.Blob, error),
	kind func(start []byte) string) error {
	var o gitread.Object
	var start []byte
	err := c.read(ctx, r, func(g gitread.Repo) error {
		blob, err := open(g)
		if err != nil {
			return err
		}
		defer blob.Close()
		o, start = blob.Object, make([]byte, min(blob.Size, smallFile))
		_, err = io.ReadFull(blob, start)
		return err
	})
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", kind(start[:min(len(start), sniffed)]))
	h.Set("Content-Length", strconv.FormatInt(o.Size, 10))
	h.Set("ETag", `"`+o.ID+`"`)
	h.Set("Cache-Control", "private, no-cache")
	// Contents come from any client, so browsers must not run them on the origin of this server.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	var body io.Reader = bytes.NewReader(start)
	switch {
	case c.r.Header.Get("If-None-Match") == `"`+o.ID+`"`:
		h.Del("Content-Length")
		return c.empty(http.StatusNotModified)
	case c.r.Method != http.MethodHead && o.Size > int64(len(start)):
		large, err := c.a.openLarge(ctx, r, o.ID)
		if err != nil {
			return err
		}
		defer large.close()
		body = large.blob
	}
	c.count(r, meter.Read, o.Size)
	if c.r.Method == http.MethodHead {
		return c.empty(http.StatusOK)
	}
	c.status = http.StatusOK
	return sendSlowly(ctx, c.w, body, o.Size)
}

// largeBlob is a blob that is read while the client receives it.
type largeBlob struct {
	blob  *gitread.Blob
	dir   *replica.Replica
	leave func() // gives its place back
}

func (l largeBlob) close() {
	l.blob.Close()
	l.dir.Release()
	l.leave()
}

// openLarge waits for a place for a large file and opens it.
func (a *API) openLarge(ctx context.Context, r records.Repo, id string) (l largeBlob, err error) {
	if l.leave, err = a.large.Enter(ctx, r.Namespace); err != nil {
		return l, err
	}
	if l.dir, err = a.o.Replicas.Acquire(ctx, r.ID); err != nil {
		l.leave()
		return l, found("Repository", err)
	}
	if l.blob, err = a.git(l.dir.Dir).Blob(ctx, id); err != nil {
		l.dir.Release()
		l.leave()
	}
	return l, err
}

// sendSlowly sends a body of a size with the status 200. The client has a time for each part and for the whole. sendSlowly fails at once
// when ctx ends.
func sendSlowly(ctx context.Context, w http.ResponseWriter, body io.Reader, size int64) error {
	out := slowWriter{ctx, w, http.NewResponseController(w), time.Now().Add(patience + time.Duration(size/slowBytes)*time.Second)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = out.control.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-stopped // the writer must not be used after this request
		}
	}()
	_, err := io.Copy(out, body)
	return err
}

// slowWriter writes to a client that has a time for each part, until a time for the whole or until ctx ends.
type slowWriter struct {
	ctx     context.Context
	w       io.Writer
	control *http.ResponseController
	end     time.Time
}

func (s slowWriter) Write(p []byte) (int, error) {
	part := time.Now().Add(patience)
	if part.After(s.end) {
		part = s.end
	}
	_ = s.control.SetWriteDeadline(part) // writers of tests may have none
	if err := s.ctx.Err(); err != nil {  // after the deadline was set, as the end of ctx sets one too
		return 0, err
	}
	return s.w.Write(p)
}
