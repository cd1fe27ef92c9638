package api

import (
	"errors"
	"net/http"

	"github.com/artifactfs/artifactfs/server/records"
)

// The default and the maximum number of results on a page.
const (
	listLimit    = 50
	listMax      = 200
	tokenLimit   = 30
	tokenMax     = 100
	unrestricted = "unrestricted"
)

type namespaceInfo struct {
	Namespace    string `json:"namespace"`
	Jurisdiction string `json:"jurisdiction"`
	RepoCount    int    `json:"repo_count"`
	CreatedAt    string `json:"created_at"`
	UpdatedAt    string `json:"updated_at"`
}

func infoOfNamespace(n records.Namespace) namespaceInfo {
	return namespaceInfo{n.Name, n.Jurisdiction, n.Repos, timeText(n.Created), timeText(n.Updated)}
}

func createNamespace(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	name := in.text("namespace")
	jurisdiction := in.option("jurisdiction", unrestricted, "eu", "us")
	in.refuse(validNamespace(name))
	if err := in.err(); err != nil {
		return err
	}
	now := c.a.o.Now()
	n := records.Namespace{Name: name, Jurisdiction: jurisdiction, Created: now, Updated: now}
	ctx, cancel := c.context()
	defer cancel()
	switch err := c.a.o.Records.Namespaces.Create(ctx, n, c.cause()); {
	case isExists(err):
		return exists("Namespace already exists")
	case err != nil:
		return err
	}
	return c.send(http.StatusCreated, infoOfNamespace(n), nil)
}

func getNamespace(c *call) error {
	n, err := c.a.o.Records.Namespaces.Get(c.r.Context(), c.params["namespace"])
	if err != nil {
		return found("Namespace", err)
	}
	return c.send(http.StatusOK, infoOfNamespace(n), nil)
}

func listNamespaces(c *call) error {
	q := c.query()
	limit := q.number("limit", listLimit, 1, listMax)
	page := q.number("page", 0, 1, -1)
	after, fault := parseNameCursor(q.text("cursor"))
	q.refuse(fault)
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	// One result more than the limit is read, to find out whether there is a next page.
	offset := 0
	if page > 1 && after == "" {
		offset = (page - 1) * limit
	}
	list, total, err := c.a.o.Records.Namespaces.List(ctx, after, offset, limit+1)
	if err != nil {
		return err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = nameCursor(list[limit-1].Name)
	}
	result := make([]namespaceInfo, len(list))
	for i, n := range list {
		result[i] = infoOfNamespace(n)
	}
	if after == "" && (page > 0 || next == "") {
		return c.send(http.StatusOK, result, pages(max(page, 1), limit, len(list), total))
	}
	return c.send(http.StatusOK, result, cursorInfo{next, limit, len(list)})
}

func deleteNamespace(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	err := c.a.o.Records.Namespaces.Delete(ctx, c.params["namespace"], c.cause())
	switch {
	case errors.Is(err, records.ErrNotEmpty):
		return &Fault{http.StatusConflict, codeInput, "Namespace is not empty", ""}
	case err != nil:
		return found("Namespace", err)
	}
	return c.empty(http.StatusNoContent)
}

type accountInfo struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// listAccounts lists the only account, so that clients can find out its id.
func listAccounts(c *call) error {
	return c.send(http.StatusOK, []accountInfo{{c.a.o.Account, "artifactfs"}}, pages(1, tokenLimit, 1, 1))
}
