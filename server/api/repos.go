package api

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	defaultBranch = "main"
	firstTokenTTL = 24 * time.Hour // lifetime of the token that is created together with a repository
)

type baseInfo struct {
	URL    string `json:"url"`
	Commit string `json:"commit"`
}

// repoInfo describes a repository in answers. The fields from ObjectFormat on are extensions, and are left out if they
// have their default values.
type repoInfo struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Description   *string   `json:"description"`
	DefaultBranch string    `json:"default_branch"`
	CreatedAt     string    `json:"created_at"`
	UpdatedAt     string    `json:"updated_at"`
	LastPushAt    *string   `json:"last_push_at"`
	Source        *string   `json:"source"`
	ReadOnly      bool      `json:"read_only"`
	Remote        string    `json:"remote"`
	Status        string    `json:"status,omitempty"`
	ObjectFormat  string    `json:"object_format,omitempty"`
	Base          *baseInfo `json:"base,omitempty"`
}

func (c *call) infoOfRepo(r records.Repo) repoInfo {
	i := repoInfo{ID: r.ID, Name: r.Name, Description: optional(r.Description), DefaultBranch: r.DefaultBranch,
		CreatedAt: timeText(r.Created),
		UpdatedAt: timeText(r.Updated), LastPushAt: optionalTime(r.LastPush), Source: optional(r.Source),
		ReadOnly: r.ReadOnly,
		Remote:   c.remote(r), Status: string(r.Status)}
	if r.ObjectFormat != "sha1" {
		i.ObjectFormat = r.ObjectFormat
	}
	if r.BaseURL != "" {
		i.Base = &baseInfo{r.BaseURL, r.BaseCommit}
	}
	if c.a.o.Compat {
		i.UpdatedAt, i.LastPushAt = i.CreatedAt, nil
	}
	return i
}

// newRepo is the answer to requests that create a repository.
type newRepo struct {
	ID            string  `json:"id"`
	Name          string  `json:"name"`
	Description   *string `json:"description"`
	DefaultBranch string  `json:"default_branch"`
	Remote        string  `json:"remote"`
	Token         string  `json:"token"`
	Objects       *int64  `json:"objects,omitempty"` // number of objects; only for forks
}

// create creates a repository with a token, and returns it with the answer. The function event returns the event of the
// creation; if it is nil, there is no event.
func (c *call) create(n records.Creation,
	event func(events.Stamp, records.Repo) records.Event) (records.Repo, newRepo, error) {
	ctx, cancel := c.context()
	defer cancel()
	now := c.a.o.Now()
	r := &n.Repo
	r.ID, r.Created, r.Updated = records.NewID(), now, now
	if r.Status == "" {
		r.Status = records.Ready
	}
	// Read the namespace, because events contain its name in the spelling with which it was created.
	switch ns, err := c.a.o.Records.Namespaces.Get(ctx, r.Namespace); {
	case err == nil:
		r.Namespace = ns.Name
	case !errors.Is(err, records.ErrNotFound):
		return n.Repo, newRepo{}, err
	}
	more := records.Amounts{Repos: 1, Refs: int64(len(n.Refs))}
	if n.All && c.a.o.Quotas.Limits().Refs > 0 {
		var err error
		if more.Refs, err = c.a.o.Records.Repos.CountRefs(ctx, n.Parent); err != nil {
			return n.Repo, newRepo{}, err
		}
	}
	if err := c.a.o.Quotas.Add(ctx, r.Namespace, more); err != nil {
		return n.Repo, newRepo{}, err
	}
	token, text := access.Mint(records.Token{Role: records.RepoToken, Scope: records.WriteScope,
		Namespace: r.Namespace, RepoID: r.ID,
		Actor: c.who().Actor, Expires: now.Add(firstTokenTTL)}, now)
	stamp := c.stamp()
	if event != nil {
		n.Events = append(n.Events, event(stamp, *r))
	}
	n.Events = append(n.Events, events.TokenCreated(stamp, *r, token))
	n.Token, n.Cause = &token, c.cause()
	switch err := c.a.o.Records.Repos.Create(ctx, n); {
	case isExists(err):
		return n.Repo, newRepo{}, exists("repo already exists: %s", r.Name)
	case err != nil:
		return n.Repo, newRepo{}, err
	}
	return n.Repo, newRepo{ID: r.ID, Name: r.Name, Description: optional(r.Description), DefaultBranch: r.DefaultBranch,
		Remote: c.remote(*r),
		Token:  text}, nil
}

func createRepo(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	r := records.Repo{Namespace: c.params["namespace"], Name: in.text("name"), Description: in.text("description"),
		DefaultBranch: in.text("default_branch"), ReadOnly: in.flag("read_only"),
		ObjectFormat: in.option("object_format", "sha1", "sha1", "sha256")}
	if r.DefaultBranch == "" {
		r.DefaultBranch = defaultBranch
	}
	in.refuse(validRepo(r.Name))
	in.refuse(validBranch("default_branch", r.DefaultBranch))
	if base := in.object("base"); base != nil {
		r.BaseURL, r.BaseCommit = base.required("url"), base.required("commit")
		base.refuse(validBase(r.BaseURL, r.BaseCommit))
		in.refuse(base.fault)
	}
	if err := in.err(); err != nil {
		return err
	}
	created, result, err := c.create(records.Creation{Repo: r}, events.Created)
	if err != nil {
		return err
	}
	c.count(created, meter.Create, 0)
	return c.send(http.StatusCreated, result, nil)
}

// validBase returns a fault unless clients can use the base of a thin repository. A URL with credentials is refused,
// because every user who may read the repository can see it.
func validBase(address, commit string) *Fault {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" && u.Scheme != "git", u.Host == "":
		return invalid("base/url", "Must be a URL of https, http, ssh or git")
	case u.User != nil && (u.Scheme != "ssh" || hasPassword(u.User)):
		return invalid("base/url", "Must not contain credentials")
	case !object.ValidID(commit):
		return invalid("base/commit", "Invalid hash")
	}
	return nil
}

func hasPassword(u *url.Userinfo) bool {
	_, has := u.Password()
	return has
}

func getRepo(c *call) error {
	r, err := c.repo()
	if err != nil {
		return err
	}
	c.count(r, meter.Info, 0)
	i := c.infoOfRepo(r)
	if c.a.o.Compat {
		if err := unfinished(r); err != nil {
			return err
		}
		i.Status = ""
	}
	return c.send(http.StatusOK, i, nil)
}

func listRepos(c *call) error {
	q := c.query()
	limit := q.number("limit", listLimit, 1, listMax)
	page := q.number("page", 0, 1, maxPage)
	query := records.RepoQuery{Namespace: c.params["namespace"], Search: q.text("search"),
		Sort:      q.option("sort", "created_at", "updated_at", "last_push_at", "name"),
		Ascending: q.option("direction", "desc", "asc") == "asc", Limit: limit, After: q.text("cursor")}
	if len(query.Search) > maxName || len(query.After) > maxText {
		q.refuse(invalid("search", "Too big: expected string to have <=%d characters", maxName))
	}
	if err := q.err(); err != nil {
		return err
	}
	if page > 1 && query.After == "" {
		query.Offset = (page - 1) * limit
	}
	ctx, cancel := c.context()
	defer cancel()
	list, total, next, err := c.a.o.Records.Repos.List(ctx, query)
	switch {
	case errors.Is(err, records.ErrCursor):
		return invalid("cursor", "Invalid cursor")
	case err != nil:
		return err
	}
	result := make([]repoInfo, len(list))
	for i, r := range list {
		result[i] = c.infoOfRepo(r)
	}
	if query.After == "" && (page > 0 || next == "") {
		return c.send(http.StatusOK, result, pages(max(page, 1), limit, len(list), total))
	}
	return c.send(http.StatusOK, result, cursorInfo{next, limit, len(list)})
}

// deleteRepo deletes a repository. For 30 days, a repeated request gets the same answer, because clients repeat a
// request whose answer was lost.
func deleteRepo(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	store := c.a.o.Records.Repos
	r, err := c.repo()
	if err == nil {
		err = store.Delete(ctx, r.ID, []records.Event{events.Deleted(c.stamp(), r)}, c.cause())
		if err == nil {
			c.count(r, meter.Delete, 0)
		}
	}
	if err = found("Repository", err); err != nil {
		deleted, again := store.FindDeleted(ctx, c.params["namespace"], c.params["name"])
		if again != nil {
			if f := (*Fault)(nil); errors.As(err, &f) {
				return found("Repository", again)
			}
			return err
		}
		r, c.recorded = deleted, false
	}
	return c.send(http.StatusAccepted, struct {
		ID string `json:"id"`
	}{r.ID}, nil)
}
