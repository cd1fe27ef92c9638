package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/server/imports"
	"github.com/artifactfs/artifactfs/server/records"
)

// remoteURL returns the URL of an import in the form that clients see: without a slash at the end, and with ".git".
// allowHTTP permits http, which the importer accepts for the loopback address only.
func remoteURL(text string, allowHTTP bool) (string, *Fault) {
	u, err := url.Parse(text)
	switch {
	case err == nil && strings.EqualFold(u.Scheme, "http") && !allowHTTP:
		return "", invalid("url", "Must be an HTTPS URL")
	case err != nil, !strings.EqualFold(u.Scheme, "https") && !allowHTTP, u.Hostname() == "", u.User != nil,
		u.RawQuery != "",
		u.Fragment != "":
		return "", notGit()
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	if path == "" {
		return "", notGit()
	}
	return strings.ToLower(u.Scheme) + "://" + u.Host + strings.TrimSuffix(path, ".git") + ".git", nil
}

func notGit() *Fault {
	return &Fault{http.StatusBadRequest, codeURL,
		"url must be an HTTPS git remote URL (e.g. https://github.com/owner/repo)", "/url"}
}

// importFault returns the fault for an error of an Importer.
func importFault(url string, err error) error {
	switch {
	case errors.Is(err, imports.ErrScheme):
		return invalid("url", "%s", imports.ErrScheme)
	case errors.Is(err, imports.ErrBranch):
		return invalid("branch", "Branch not found")
	case errors.Is(err, imports.ErrDepth):
		return invalid("depth", "%s", imports.ErrDepth)
	case errors.Is(err, imports.ErrNotGit):
		return notGit()
	case errors.Is(err, imports.ErrAuth):
		return &Fault{http.StatusUnprocessableEntity, codeRemoteAuth, fmt.Sprintf(
			"Repository %q requires authentication (HTTP 401). Only public repositories can be imported.", url), "/url"}
	case errors.Is(err, imports.ErrUnavailable):
		return &Fault{http.StatusBadGateway, codeUpstream, "Remote is unavailable", "/url"}
	case errors.Is(err, imports.ErrBusy):
		return &Fault{http.StatusConflict, codeImportInProgress, "Repository import is in progress", ""}
	}
	return err
}

// importer returns the Importer, or a fault if the server has none.
func (c *call) importer() (Importer, error) {
	if c.a.o.Importer == nil {
		return nil, &Fault{http.StatusNotImplemented, codeInternal, "This server imports no repositories", ""}
	}
	return c.a.o.Importer, nil
}

// importRepo creates a repository and begins to copy a repository of another server into it.
func importRepo(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	q := imports.Request{URL: in.required("url"), Branch: in.text("branch"), Depth: in.number("depth", 0),
		Secret:    in.text("secret"),
		Namespace: c.params["namespace"]}
	r := records.Repo{Namespace: c.params["namespace"], Name: c.params["name"], ReadOnly: in.flag("read_only"),
		Status:        records.Importing,
		DefaultBranch: defaultBranch}
	if q.Branch != "" {
		in.refuse(validBranch("branch", q.Branch))
		r.DefaultBranch = q.Branch
	}
	if in.in["depth"] != nil && q.Depth < 1 {
		in.refuse(invalid("depth", "Too small: expected number to be >0"))
	}
	// the importer uses the URL as it is in the request, because some servers do not accept the form with ".git"
	var shown string
	if in.fault == nil {
		var fault *Fault
		shown, fault = remoteURL(q.URL, c.a.o.ImportHTTP)
		in.refuse(fault)
	}
	if err := in.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	importer, err := c.importer()
	if err != nil {
		return err
	}
	switch old, err := c.a.o.Records.Repos.Get(ctx, r.Namespace, r.Name); {
	case err == nil && old.Status == records.Importing:
		return unfinished(old)
	case err == nil:
		return exists("repo already exists: %s", old.Name)
	case !errors.Is(err, records.ErrNotFound):
		return err
	}
	remote, err := importer.Check(c.r.Context(), q)
	if err != nil {
		return importFault(shown, err)
	}
	if r.ObjectFormat = remote.ObjectFormat; q.Branch == "" && remote.DefaultBranch != "" && !c.a.o.Compat {
		r.DefaultBranch = remote.DefaultBranch
	}
	r.Source = "git:" + shown
	created, result, err := c.create(records.Creation{Repo: r}, nil)
	if err != nil {
		return err
	}
	if err := importer.Start(ctx, created, q, records.Cause{}); err != nil {
		// Delete the repository again, because without an import it would never become ready.
		if undo := c.a.o.Records.Repos.Delete(ctx, created.ID, nil, records.Cause{}); undo != nil {
			c.a.o.Log.Error("could not remove a repository whose import did not start", zap.String("repository", created.ID),
				zap.Error(undo))
		}
		return importFault(shown, err)
	}
	return c.send(http.StatusCreated, result, nil)
}

// importInfo is the progress of an import.
type importInfo struct {
	State      string  `json:"state"`
	Phase      string  `json:"phase"`
	Done       int64   `json:"done"`
	Total      int64   `json:"total"`
	Bytes      int64   `json:"bytes"`
	Error      *string `json:"error"`
	StartedAt  *string `json:"started_at"`
	FinishedAt *string `json:"finished_at"`
}

func importStatus(c *call) error {
	r, err := c.repo()
	if err != nil {
		return err
	}
	importer, err := c.importer()
	if err != nil {
		return err
	}
	s, err := importer.Status(c.r.Context(), r)
	if err != nil {
		return found("Import", err)
	}
	return c.send(http.StatusOK, importInfo{string(s.State), s.Phase, s.Done, s.Total, s.Bytes, optional(s.Error),
		optionalTime(s.Started),
		optionalTime(s.Finished)}, nil)
}

// refreshImport imports a repository again, to update it.
func refreshImport(c *call) error {
	r, err := c.repo()
	if err != nil {
		return err
	}
	importer, err := c.importer()
	if err != nil {
		return err
	}
	if err := importer.Start(c.r.Context(), r, imports.Request{}, c.cause()); err != nil {
		return found("Import", importFault(strings.TrimPrefix(r.Source, "git:"), err))
	}
	return c.send(http.StatusAccepted, struct {
		ID string `json:"id"`
	}{r.ID}, nil)
}
