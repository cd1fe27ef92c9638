package forge

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

const (
	pageSize = 50 // number of pull requests in a page of a list
	maxPages = 40 // maximum number of pages that are read
)

// pull is a pull request in the answers of gitea and GitHub.
type pull struct {
	Number int64  `json:"number"`
	URL    string `json:"html_url"`
	Head   branch `json:"head"`
	Base   branch `json:"base"`
}

// branch is one side of a pull request.
type branch struct {
	Ref  string `json:"ref"`
	Repo *struct {
		ID int64 `json:"id"`
	} `json:"repo"` // null: the repository was deleted
}

// opened returns the pull request as an Opened, the type that is common to all forges.
func (p pull) opened() Opened { return Opened{URL: p.URL, Number: p.Number} }

// of reports whether the pull request p merges the branch r.Head into the branch r.Base, both in the same repository.
func (p pull) of(r PullRequest) bool {
	return p.Head.Ref == r.Head && p.Base.Ref == r.Base && p.Head.Repo != nil && p.Base.Repo != nil &&
		p.Head.Repo.ID == p.Base.Repo.ID
}

// changes returns the body of a request that changes a pull request. The parameter body is the name that the API uses
// for the description.
func changes(p PullRequest, body string) map[string]string {
	change := map[string]string{body: p.Body}
	if p.Retitle {
		change["title"] = p.Title
	}
	return change
}

// pulls calls the part of the REST API that gitea and GitHub have in common.
type pulls struct {
	*caller
	owner, name string // owner and name of the repository
}

func (g pulls) path() string {
	return "/repos/" + url.PathEscape(g.owner) + "/" + url.PathEscape(g.name) + "/pulls"
}

func (g pulls) create(ctx context.Context, p PullRequest) (Opened, error) {
	var made pull
	body := map[string]string{"title": p.Title, "body": p.Body, "head": p.Head, "base": p.Base}
	err := g.call(ctx, http.MethodPost, g.path(), nil, body, &made)
	return made.opened(), err
}

func (g pulls) update(ctx context.Context, number int64, p PullRequest) (Opened, error) {
	var now pull
	err := g.call(ctx, http.MethodPatch, g.path()+"/"+strconv.FormatInt(number, 10), nil, changes(p, "body"), &now)
	return now.opened(), err
}

// gitea calls the REST API of gitea: https://docs.gitea.com/api/
type gitea struct{ pulls }

func (g gitea) find(ctx context.Context, p PullRequest) (Opened, error) {
	for page := 1; page <= maxPages; page++ {
		var list []pull
		query := url.Values{"state": {"open"}, "limit": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)}}
		if err := g.call(ctx, http.MethodGet, g.path(), query, nil, &list); err != nil {
			return Opened{}, err
		}
		for _, each := range list {
			if each.of(p) {
				return each.opened(), nil
			}
		}
		if len(list) == 0 { // a server may limit pages to fewer pull requests
			break
		}
	}
	return Opened{}, nil
}

// github calls the REST API of GitHub: https://docs.github.com/en/rest/pulls/pulls
type github struct{ pulls }

func (g github) find(ctx context.Context, p PullRequest) (Opened, error) {
	var list []pull
	query := url.Values{"state": {"open"}, "head": {g.owner + ":" + p.Head}, "base": {p.Base}}
	if err := g.call(ctx, http.MethodGet, g.path(), query, nil, &list); err != nil {
		return Opened{}, err
	}
	for _, each := range list {
		if each.of(p) {
			return each.opened(), nil
		}
	}
	return Opened{}, nil
}

// gitlab calls the REST API of GitLab: https://docs.gitlab.com/api/merge_requests/
type gitlab struct {
	*caller
	project string // path of the project with its groups
}

// merge is a merge request in the answers of GitLab.
type merge struct {
	Number int64  `json:"iid"` // number within the project
	URL    string `json:"web_url"`
	Source int64  `json:"source_project_id"`
	Target int64  `json:"target_project_id"`
}

// opened returns the merge request as an Opened, the type that is common to all forges.
func (m merge) opened() Opened { return Opened{URL: m.URL, Number: m.Number} }

func (g gitlab) path() string { return "/projects/" + url.PathEscape(g.project) + "/merge_requests" }

func (g gitlab) find(ctx context.Context, p PullRequest) (Opened, error) {
	var list []merge
	query := url.Values{"state": {"opened"}, "source_branch": {p.Head}, "target_branch": {p.Base}}
	if err := g.call(ctx, http.MethodGet, g.path(), query, nil, &list); err != nil {
		return Opened{}, err
	}
	for _, each := range list {
		if each.Source == each.Target {
			return each.opened(), nil
		}
	}
	return Opened{}, nil
}

func (g gitlab) create(ctx context.Context, p PullRequest) (Opened, error) {
	var made merge
	body := map[string]string{"title": p.Title, "description": p.Body, "source_branch": p.Head, "target_branch": p.Base}
	err := g.call(ctx, http.MethodPost, g.path(), nil, body, &made)
	return made.opened(), err
}

func (g gitlab) update(ctx context.Context, number int64, p PullRequest) (Opened, error) {
	var now merge
	err := g.call(ctx, http.MethodPut, g.path()+"/"+strconv.FormatInt(number, 10), nil, changes(p, "description"), &now)
	return now.opened(), err
}
