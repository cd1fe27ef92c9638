package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

const (
	logLimit  = 50
	logMax    = 1000
	sniffed   = 8 << 10          // number of bytes at the start of a file that determine whether it is text
	smallFile = 64 << 10         // maximum size, in bytes, of a file that is sent from memory
	patience  = 30 * time.Second // time that a slow client gets in addition to the time that it needs at slowBytes
	slowBytes = 4 << 10          // number of bytes per second that a client must be able to receive
)

// read calls the function do, which reads from the git directory of a repository.
func (c *call) read(ctx context.Context, r records.Repo, do func(gitread.Repo) error) error {
	return use(ctx, c, r, func(_ *replica.Replica, g gitread.Repo) error { return do(g) })
}

// use calls the function do with the replica of a repository.
func use(ctx context.Context, c *call, r records.Repo, do func(*replica.Replica, gitread.Repo) error) error {
	place, err := c.a.reading.Enter(ctx, places.Large, places.Of(r.Namespace, r.ID, c.token.ID)...)
	if err != nil {
		return err
	}
	defer place.Release()
	dir, err := c.a.o.Replicas.Acquire(ctx, r.ID)
	if err != nil {
		return found("Repository", err)
	}
	defer dir.Release()
	if err = do(dir, c.a.git(dir.Dir, place)); err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // return the cause, because the end of ctx has killed git
	}
	return err
}

// placed waits for a place for work that runs git outside of this package. It returns the context for the work, which
// has the memory limit of the place. The caller must call leave.
func placed(c *call, r records.Repo) (ctx context.Context, leave func(), err error) {
	ctx = c.r.Context()
	place, err := c.a.reading.Enter(ctx, places.Large, places.Of(r.Namespace, r.ID, c.token.ID)...)
	if err != nil {
		return nil, nil, err
	}
	return place.Limit(ctx), place.Release, nil
}

// git returns a reader of the objects in a git directory, with the memory limit of the place.
func (a *API) git(dir string, place *places.Place) gitread.Repo {
	g := gitread.Repo{Repo: read.Repo{Dir: dir, Git: a.o.Replicas.Git(), ShortNames: a.o.Compat, Pool: &a.pool}}
	g.Git.Memory = place.Memory(g.Git.Memory)
	return g
}

// readJSON sends the value that the function do reads from the git directory of the repository in the path. what names
// the object in errors.
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

// getLog lists commits. For an unknown ref, the list is empty.
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
		if errors.Is(err, read.ErrNotFound) {
			return []read.Commit{}, nil
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

// smallTree is the maximum size, in bytes, of the text of a tree that is sent from memory.
const smallTree = 1 << 20

// The beginning and the end of an answer with a tree.
const (
	treeStart = `{"result":[`
	treeEnd   = `],"success":true,"errors":[],"messages":[]}`
)

// getTree sends the entries of a tree. The text for a large directory is not kept in memory: it is generated a second
// time while the client receives it.
func getTree(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	r, id, err := c.hash()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	var size int64
	err = c.read(ctx, r, func(g gitread.Repo) error {
		return writeTree(ctx, g, id, func(part []byte) error {
			if size += int64(len(part)); size <= smallTree {
				text.Write(part)
			}
			return nil
		})
	})
	if other := (*read.TypeError)(nil); c.a.o.Compat && errors.As(err, &other) && other.Got == "commit" {
		return &Fault{http.StatusInternalServerError, codeInternal, "A stored git object is corrupt.", ""}
	}
	if err != nil {
		return found("Tree", err)
	}
	c.count(r, meter.Read, 0)
	h := c.w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Cache-Control", "no-store")
	if size <= smallTree {
		c.status = http.StatusOK
		return sendSlowly(ctx, c.w, &text, size)
	}
	return sendTree(c, r, id, size)
}

// sendTree sends the text for a large tree while it is generated. size is the size of the text in bytes.
func sendTree(c *call, r records.Repo, id string, size int64) error {
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	l, err := c.a.openLarge(ctx, r)
	if err != nil {
		return err
	}
	defer l.close()
	c.status = http.StatusOK
	out, in := io.Pipe()
	var making sync.WaitGroup
	defer making.Wait()
	defer out.Close()
	making.Go(func() {
		text := bufio.NewWriterSize(in, 32<<10)
		err := writeTree(ctx, l.git, id, func(part []byte) error { _, err := text.Write(part); return err })
		in.CloseWithError(cmp.Or(err, text.Flush()))
	})
	return sendSlowly(ctx, c.w, out, size)
}

// writeTree generates the text of an answer with a tree, and passes it to the function write in parts.
func writeTree(ctx context.Context, g gitread.Repo, id string, write func(part []byte) error) error {
	failed := write([]byte(treeStart))
	first := true
	if err := g.Entries(ctx, id, func(e read.Entry) bool {
		part, err := json.Marshal(e)
		if err == nil && !first {
			part = append([]byte(","), part...)
		}
		first = false
		if failed = cmp.Or(failed, err); failed == nil {
			failed = write(part)
		}
		return failed == nil
	}); err != nil {
		return err
	}
	return cmp.Or(failed, write([]byte(treeEnd)))
}

func getBlob(c *call) error {
	r, id, err := c.hash()
	if err != nil {
		return err
	}
	return c.contents(r, "Blob", func(ctx context.Context, g gitread.Repo) (*read.Blob, error) { return g.Blob(ctx, id) },
		binary)
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
	return c.contents(r, "File",
		func(ctx context.Context, g gitread.Repo) (*read.Blob, error) { return g.File(ctx, ref, path) }, kind)
}

// binary returns a content type that browsers do not display.
func binary([]byte) string { return bytesType }

// sniff returns the content type of a file that begins with start: that of text if start is UTF-8 without NUL.
func sniff(start []byte) string {
	for len(start) > 0 {
		char, n := utf8.DecodeRune(start)
		switch {
		case char == utf8.RuneError && n == 1 && (len(start) >= utf8.UTFMax || utf8.FullRune(start)), char == 0:
			return bytesType
		// the last character of start is incomplete, because start ends within it
		case char == utf8.RuneError && n == 1:
			return textType
		}
		start = start[n:]
	}
	return textType
}

// contents sends a blob, and stops if the token is revoked. kind returns the content type for the first bytes of the
// blob.
func (c *call) contents(r records.Repo, what string, open func(context.Context, gitread.Repo) (*read.Blob, error),
	kind func(start []byte) string) error {
	ctx, stop := c.a.o.Guard.Watch(c.r.Context(), c.token)
	defer stop()
	deadline(c.w, time.Time{}) // remove the deadline of the server, which may be too short for a large file
	err := sendBlob(ctx, c, r, func(g gitread.Repo) (*read.Blob, error) {
		blob, err := open(ctx, g)
		return blob, found(what, err)
	}, kind)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// sendBlob sends a blob. It first reads the beginning of the blob, which for most files is the whole file, so that a
// client that reads slowly does not occupy a git process.
func sendBlob(ctx context.Context, c *call, r records.Repo, open func(gitread.Repo) (*read.Blob, error),
	kind func(start []byte) string) error {
	var o read.Object
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
	// Browsers must not run contents as scripts on the origin of this server, because any client may have pushed them.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	var body io.Reader = bytes.NewReader(start)
	switch {
	case c.r.Header.Get("If-None-Match") == `"`+o.ID+`"`:
		h.Del("Content-Length")
		return c.empty(http.StatusNotModified)
	case c.r.Method != http.MethodHead && o.Size > int64(len(start)):
		l, err := c.a.openLarge(ctx, r)
		if err != nil {
			return err
		}
		defer l.close()
		blob, err := l.git.Blob(ctx, o.ID)
		if err != nil {
			return err
		}
		defer blob.Close()
		body = blob
	}
	c.count(r, meter.Read, o.Size)
	if c.r.Method == http.MethodHead {
		return c.empty(http.StatusOK)
	}
	c.status = http.StatusOK
	return sendSlowly(ctx, c.w, body, o.Size)
}

// large is an object that is read while the client receives it.
type large struct {
	git   gitread.Repo
	dir   *replica.Replica
	place *places.Place
}

func (l large) close() {
	l.dir.Release()
	l.place.Release()
}

// openLarge waits for a place for a large object.
func (a *API) openLarge(ctx context.Context, r records.Repo) (l large, err error) {
	if l.place, err = a.large.Enter(ctx, places.Small, places.Of(r.Namespace, r.ID, "")...); err != nil {
		return l, err
	}
	if l.dir, err = a.o.Replicas.Acquire(ctx, r.ID); err != nil {
		l.place.Release()
		return l, found("Repository", err)
	}
	l.git = a.git(l.dir.Dir, l.place)
	return l, nil
}

// sendSlowly sends a body of the given size with the status 200. There is a time limit for each part and for the whole
// body. sendSlowly fails at once when ctx ends.
func sendSlowly(ctx context.Context, w http.ResponseWriter, body io.Reader, size int64) error {
	out := slowWriter{ctx, w, http.NewResponseController(w),
		time.Now().Add(patience + time.Duration(size/slowBytes)*time.Second)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = out.control.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-stopped // wait, because the writer must not be used after this request
		}
	}()
	_, err := io.Copy(out, body)
	return err
}

// slowWriter writes to a client. There is a time limit for each part; writing also ends at a time for the whole body,
// or when ctx ends.
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
	_ = s.control.SetWriteDeadline(part) // an error is ignored, because the writers of tests have no deadlines
	// checked after the deadline was set, because the end of ctx also sets a deadline
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}
