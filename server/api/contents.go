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

	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

const (
	logLimit  = 50
	logMax    = 1000
	sniffed   = 8 << 10          // bytes of a file that decide whether it is text
	patience  = 30 * time.Second // with a client that is slow, in addition to the time that it needs at slowBytes
	slowBytes = 64 << 10         // bytes a second that a client must be able to receive
)

// read calls a function that reads from the git directory of a repository.
func (c *call) read(ctx context.Context, r records.Repo, do func(gitread.Repo) error) error {
	return c.use(ctx, r, func(dir *replica.Replica) error {
		return do(gitread.Repo{Dir: dir.Dir, ShortNames: c.a.o.Compat, Pool: &c.a.pool})
	})
}

// use calls a function that needs the replica of a repository.
func (c *call) use(ctx context.Context, r records.Repo, do func(*replica.Replica) error) error {
	select {
	case c.a.reading <- struct{}{}:
		defer func() { <-c.a.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	dir, err := c.a.o.Replicas.Acquire(ctx, r.ID)
	if err != nil {
		return found("Repository", err)
	}
	defer dir.Release()
	return do(dir)
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
	if len(id) != digits || !gitread.IsID(id) {
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

// contents sends a blob. kind returns its type from its first bytes.
func (c *call) contents(r records.Repo, what string, open func(context.Context, gitread.Repo) (*gitread.Blob, error),
	kind func(start []byte) string) error {
	ctx := c.r.Context()
	// The server gives each request a time that may be too short for a large file. Writers of tests have no deadlines.
	control := http.NewResponseController(c.w)
	_ = control.SetWriteDeadline(time.Time{})
	return c.read(ctx, r, func(g gitread.Repo) error {
		blob, err := open(ctx, g)
		if err != nil {
			return found(what, err)
		}
		defer blob.Close()
		start := make([]byte, min(blob.Size, sniffed))
		if _, err := io.ReadFull(blob, start); err != nil {
			return err
		}
		h := c.w.Header()
		h.Set("Content-Type", kind(start))
		h.Set("Content-Length", strconv.FormatInt(blob.Size, 10))
		h.Set("ETag", `"`+blob.ID+`"`)
		h.Set("Cache-Control", "private, no-cache")
		// Contents come from any client, so browsers must not run them on the origin of this server.
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		if c.r.Header.Get("If-None-Match") == `"`+blob.ID+`"` {
			h.Del("Content-Length")
			return c.empty(http.StatusNotModified)
		}
		c.status = http.StatusOK
		c.w.WriteHeader(http.StatusOK)
		c.count(r, meter.Read, blob.Size)
		if c.r.Method == http.MethodHead {
			return nil
		}
		_ = control.SetWriteDeadline(time.Now().Add(patience + time.Duration(blob.Size/slowBytes)*time.Second))
		if _, err := io.Copy(c.w, io.MultiReader(bytes.NewReader(start), blob)); err != nil {
			return err
		}
		return nil
	})
}
