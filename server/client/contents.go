package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Commit is a git commit. Authored and Committed are in seconds since 1970.
type Commit struct {
	Hash      string   `json:"hash"`
	Tree      string   `json:"treeHash"`
	Message   string   `json:"message"`
	Author    Person   `json:"author"`
	Committer Person   `json:"committer"`
	Parents   []string `json:"parents"`
	Authored  int64    `json:"authoredAt"`
	Committed int64    `json:"committedAt"`
}

// Person is the author or the committer of a commit.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// TreeEntry is an entry of a git tree.
type TreeEntry struct {
	Name string `json:"name"`
	Mode string `json:"mode"`
	Hash string `json:"hash"`
	Type string `json:"type"` // blob, tree, symlink, gitlink or exec
}

// Log returns the commit to which a ref points and its ancestors by first parents, the newest first: at most limit
// commits, without the first offset ones. An empty ref means HEAD, and limit 0 means 50. For an unknown ref it returns
// no commits and no error.
func (c *Client) Log(ctx context.Context, namespace, name, ref string, limit, offset int) ([]Commit, error) {
	q := url.Values{}
	if ref != "" {
		q.Set("ref", ref)
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if offset != 0 {
		q.Set("offset", strconv.Itoa(offset))
	}
	all, _, err := page[Commit](ctx, c, "log", repository(namespace, name), q, "namespaces", namespace,
		"repos", name, "log")
	return all, err
}

// Commit returns the commit with the given id in a repository.
func (c *Client) Commit(ctx context.Context, namespace, name, id string) (Commit, error) {
	return do[Commit](ctx, c, "show", "commit "+id, http.MethodGet, nil, "namespaces", namespace, "repos",
		name, "commit", id)
}

// Tree returns the entries of the git tree with the given id. It does not return the entries of subdirectories.
func (c *Client) Tree(ctx context.Context, namespace, name, id string) ([]TreeEntry, error) {
	return do[[]TreeEntry](ctx, c, "show", "tree "+id, http.MethodGet, nil, "namespaces", namespace, "repos",
		name, "tree", id)
}

// Blob returns a reader for the contents of the git blob with the given id. The caller must close the reader.
func (c *Client) Blob(ctx context.Context, namespace, name, id string) (io.ReadCloser, error) {
	return c.bytes(ctx, "blob "+id, nil, "namespaces", namespace, "repos", name, "blob", id)
}

// File returns a reader for the contents of a file in the commit to which a ref points. The caller must close the
// reader.
func (c *Client) File(ctx context.Context, namespace, name, ref, path string) (io.ReadCloser, error) {
	q := url.Values{"ref": {ref}, "path": {path}}
	return c.bytes(ctx, "file "+path+" at "+ref, q, "namespaces", namespace, "repos", name, "file")
}

// Raw does the same as File, but works only for a ref whose name contains no slash.
func (c *Client) Raw(ctx context.Context, namespace, name, ref, path string) (io.ReadCloser, error) {
	parts := append([]string{"namespaces", namespace, "repos", name, "raw", ref}, strings.Split(path, "/")...)
	return c.bytes(ctx, "file "+path+" at "+ref, nil, parts...)
}

// bytes requests a resource whose answer is plain bytes instead of JSON. The caller must close the reader.
func (c *Client) bytes(ctx context.Context, object string, q url.Values, parts ...string) (io.ReadCloser, error) {
	path, err := c.below(ctx, parts...)
	if err != nil {
		return nil, err
	}
	res, err := c.send(ctx, request{verb: "read", object: object, method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
