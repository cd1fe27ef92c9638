package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Namespace describes a namespace, which is a group of repositories.
type Namespace struct {
	Name         string    `json:"namespace"`
	Jurisdiction string    `json:"jurisdiction"` // unrestricted, eu or us
	Repos        int       `json:"repo_count"`
	Created      time.Time `json:"created_at"`
	Updated      time.Time `json:"updated_at"`
}

// Repo describes a repository.
type Repo struct {
	ID            string     `json:"id"`
	Name          string     `json:"name"`
	Description   string     `json:"description"`
	DefaultBranch string     `json:"default_branch"`
	Created       time.Time  `json:"created_at"`
	Updated       time.Time  `json:"updated_at"`
	LastPush      *time.Time `json:"last_push_at"` // time of the last push; nil before the first push
	Source        string     `json:"source"`       // URL of an imported repository, or the parent of a fork
	ReadOnly      bool       `json:"read_only"`
	Remote        string     `json:"remote"` // URL for git
	// Status is creating, ready, importing or forking. Servers other than artifactfs serve set it only in lists.
	Status string `json:"status,omitempty"`
}

// Created describes a new repository. Token is a repository token by which git can write to the repository for 24
// hours.
type Created struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	Description   string `json:"description"`
	DefaultBranch string `json:"default_branch"`
	Remote        string `json:"remote"`
	Token         string `json:"token"`
	Objects       int64  `json:"objects,omitempty"` // number of objects; only for forks
}

// CreateRepo contains the parameters of Client.CreateRepo. The server uses defaults for empty fields.
type CreateRepo struct {
	Name          string `json:"name"`
	Description   string `json:"description,omitempty"`
	DefaultBranch string `json:"default_branch,omitempty"`
	ReadOnly      bool   `json:"read_only,omitempty"`

	// The fields below are extensions.
	ObjectFormat string `json:"object_format,omitempty"` // sha1 or sha256
	Base         *Base  `json:"base,omitempty"`
}

// Base names another repository, from which the server can get objects that a repository lacks because its sessions
// were pushed in thin mode, and a commit from which these objects are reachable.
type Base struct {
	URL    string `json:"url"`
	Commit string `json:"commit"`
}

// Fork contains the parameters of Client.Fork.
type Fork struct {
	Name              string `json:"name"`
	Description       string `json:"description,omitempty"`
	ReadOnly          bool   `json:"read_only,omitempty"`
	DefaultBranchOnly bool   `json:"default_branch_only,omitempty"`

	// The fields below are extensions.
	Namespace string `json:"namespace,omitempty"` // namespace of the fork; "": the namespace of the parent
	// checkpoint of a session to which the default branch of the fork is set
	Checkpoint string   `json:"checkpoint,omitempty"`
	Commit     string   `json:"commit,omitempty"` // commit to which the default branch of the fork is set
	Refs       []string `json:"refs,omitempty"`   // globs of the refs that are copied
	// Transcripts states whether the transcripts of sessions are copied, too. All sessions are closed in the fork.
	Transcripts bool `json:"transcripts,omitempty"`
}

// Import contains the parameters of Client.Import.
type Import struct {
	URL      string `json:"url"`
	Branch   string `json:"branch,omitempty"`
	Depth    int    `json:"depth,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Secret   string `json:"secret,omitempty"` // extension: name of a secret of the server with the credentials for URL
}

// CreateNamespace creates a namespace. jurisdiction states where its data may be stored: "eu", "us", or "" for no
// restriction.
func (c *Client) CreateNamespace(ctx context.Context, name, jurisdiction string) (Namespace, error) {
	body := struct {
		Name         string `json:"namespace"`
		Jurisdiction string `json:"jurisdiction,omitempty"`
	}{name, jurisdiction}
	return do[Namespace](ctx, c, "create", "namespace "+name, http.MethodPost, body, "namespaces")
}

// Namespace returns the description of a namespace.
func (c *Client) Namespace(ctx context.Context, name string) (Namespace, error) {
	return do[Namespace](ctx, c, "show", "namespace "+name, http.MethodGet, nil, "namespaces", name)
}

// DeleteNamespace deletes a namespace, which must not contain repositories.
func (c *Client) DeleteNamespace(ctx context.Context, name string) error {
	_, err := do[any](ctx, c, "delete", "namespace "+name, http.MethodDelete, nil, "namespaces", name)
	return err
}

// Namespaces yields all namespaces. It requests a page of the list when it is needed, and ends after an error.
func (c *Client) Namespaces(ctx context.Context) iter.Seq2[Namespace, error] {
	return pages[Namespace](ctx, c, "list", "namespaces", url.Values{}, "namespaces")
}

// CreateRepo creates a repository. It also creates the namespace if that does not exist.
func (c *Client) CreateRepo(ctx context.Context, namespace string, r CreateRepo) (Created, error) {
	return do[Created](ctx, c, "create", repository(namespace, r.Name), http.MethodPost, r, "namespaces",
		namespace, "repos")
}

// Repo returns the description of a repository.
func (c *Client) Repo(ctx context.Context, namespace, name string) (Repo, error) {
	return do[Repo](ctx, c, "show", repository(namespace, name), http.MethodGet, nil, "namespaces", namespace,
		"repos", name)
}

// DeleteRepo deletes a repository. It returns nil if the repository was deleted before.
func (c *Client) DeleteRepo(ctx context.Context, namespace, name string) error {
	_, err := do[any](ctx, c, "delete", repository(namespace, name), http.MethodDelete, nil, "namespaces", namespace,
		"repos", name)
	return err
}

// ListRepos selects and sorts the repositories that Repos and RepoPage return. The zero value selects all, the newest
// first.
type ListRepos struct {
	Search    string // text that the name must contain
	Sort      string // created_at, updated_at, last_push_at or name
	Ascending bool
	Limit     int    // maximum number of repositories on a page, from 1 to 200; 0 means 50
	Cursor    string // PageInfo.Cursor of the previous page; only RepoPage uses it
}

func (l ListRepos) values() url.Values {
	q := url.Values{}
	set := func(key, value string) {
		if value != "" && value != "0" {
			q.Set(key, value)
		}
	}
	set("search", l.Search)
	set("sort", l.Sort)
	set("limit", strconv.Itoa(l.Limit))
	set("cursor", l.Cursor)
	if l.Ascending {
		q.Set("direction", "asc")
	}
	return q
}

// Repos yields the repositories of a namespace. It requests a page of the list when it is needed, and ends after an
// error.
func (c *Client) Repos(ctx context.Context, namespace string, l ListRepos) iter.Seq2[Repo, error] {
	return pages[Repo](ctx, c, "list", "repositories of "+namespace, l.values(), "namespaces", namespace, "repos")
}

// RepoPage returns one page of the list of the repositories of a namespace. l.Cursor selects the page.
func (c *Client) RepoPage(ctx context.Context, namespace string, l ListRepos) ([]Repo, PageInfo, error) {
	return page[Repo](ctx, c, "list", "repositories of "+namespace, l.values(), "namespaces", namespace, "repos")
}

// Fork creates a fork of the repository name in the given namespace. The result describes the fork.
func (c *Client) Fork(ctx context.Context, namespace, name string, f Fork) (Created, error) {
	return do[Created](ctx, c, "fork", repository(namespace, name), http.MethodPost, f, "namespaces", namespace,
		"repos", name, "fork")
}

// Import creates a repository with the contents of the repository at i.URL. It does not wait for the end of the import:
// until then, Repo.Status is "importing".
func (c *Client) Import(ctx context.Context, namespace, name string, i Import) (Created, error) {
	return do[Created](ctx, c, "import", repository(namespace, name), http.MethodPost, i, "namespaces", namespace, "repos",
		name, "import")
}

// repository returns the words "repository NAMESPACE/NAME" for the text of an error.
func repository(namespace, name string) string { return "repository " + namespace + "/" + name }

// do sends a request to a resource of the account and returns the decoded result.
func do[T any](ctx context.Context, c *Client, verb, object, method string, body any,
	parts ...string) (result T, err error) {
	r := request{verb: verb, object: object, method: method, body: body}
	if r.path, err = c.below(ctx, parts...); err != nil {
		return result, err
	}
	_, err = c.call(ctx, r, &result)
	return result, err
}

// page returns one page of a list.
func page[T any](ctx context.Context, c *Client, verb, object string, q url.Values,
	parts ...string) (all []T, info PageInfo, err error) {
	r := request{verb: verb, object: object, method: http.MethodGet, query: q}
	if r.path, err = c.below(ctx, parts...); err != nil {
		return nil, info, err
	}
	info, err = c.call(ctx, r, &all)
	return all, info, err
}

// pages yields the items of all pages of a list. It requests a page when its first item is needed, and ends after an
// error.
func pages[T any](ctx context.Context, c *Client, verb, object string, q url.Values,
	parts ...string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for {
			all, info, err := page[T](ctx, c, verb, object, q, parts...)
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range all {
				if !yield(item, nil) {
					return
				}
			}
			switch {
			case info.Cursor != "":
				q.Set("cursor", info.Cursor)
			case info.TotalPages > 0 && info.Page < info.TotalPages: // lists of tokens have page numbers instead of a cursor
				q.Set("page", strconv.Itoa(info.Page+1))
			default:
				return
			}
		}
	}
}
