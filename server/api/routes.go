package api

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
)

// tree is a set of path prefixes below which a route is served.
type tree int

const (
	artifacts tree = iota // /client/v4/accounts/{account}/artifacts and /v1/api
	account               // /client/v4
	extension             // /artifactfs/v1/accounts/{account}
)

// route is an entry of the table of routes.
type route struct {
	tree    tree
	method  string
	pattern []string // components of the path; "{x}" matches one component, and "{x...}" all remaining ones
	scope   records.Scope
	handle  func(c *call) error
	// repo is true for routes that also accept the tokens of the repository in the path. For these routes, call.of is
	// set.
	repo bool
}

// routes returns the table of routes.
func routes() []*route {
	var table []*route
	add := func(t tree, method, pattern string, handle func(*call) error) {
		scope := records.WriteScope
		if method == http.MethodGet {
			scope = records.ReadScope
		}
		table = append(table, &route{t, method, strings.Split(strings.TrimPrefix(pattern, "/"), "/"), scope, handle, false})
	}
	const (
		ns   = "/namespaces/{namespace}"
		repo = ns + "/repos/{name}"
	)
	add(artifacts, "POST", "/namespaces", createNamespace)
	add(artifacts, "GET", "/namespaces", listNamespaces)
	add(artifacts, "GET", ns, getNamespace)
	add(artifacts, "DELETE", ns, deleteNamespace)
	add(artifacts, "POST", ns+"/repos", createRepo)
	add(artifacts, "GET", ns+"/repos", listRepos)
	add(artifacts, "GET", repo, getRepo)
	add(artifacts, "DELETE", repo, deleteRepo)
	add(artifacts, "POST", repo+"/fork", forkRepo)
	add(artifacts, "POST", repo+"/import", importRepo)
	add(artifacts, "GET", repo+"/log", getLog)
	add(artifacts, "GET", repo+"/commit/{hash}", getCommit)
	add(artifacts, "GET", repo+"/tree/{hash}", getTree)
	add(artifacts, "GET", repo+"/blob/{hash}", getBlob)
	add(artifacts, "GET", repo+"/file", getFile)
	add(artifacts, "GET", repo+"/raw/{ref}/{path...}", getRaw)
	add(artifacts, "GET", repo+"/tokens", listTokens)
	add(artifacts, "POST", ns+"/tokens", createToken)
	add(artifacts, "DELETE", ns+"/tokens/{id}", revokeToken)

	add(account, "GET", "/accounts", listAccounts)

	add(extension, "GET", repo+"/refs", listRefs)
	add(extension, "GET", repo+"/diff", getDiff)
	add(extension, "GET", repo+"/import", importStatus)
	add(extension, "POST", repo+"/import/refresh", refreshImport)
	add(extension, "GET", repo+"/archive", listArchived)
	add(extension, "POST", repo+"/archive", archiveSessions)
	add(extension, "POST", repo+"/archive/{session}/reopen", reopenSession)
	add(extension, "GET", ns+"/retention", getRetention)
	add(extension, "PUT", ns+"/retention", putRetention)
	add(extension, "DELETE", ns+"/retention", deleteRetention)
	add(extension, "GET", ns+"/retention/plan", planRetention)
	add(extension, "POST", ns+"/retention/run", runRetention)
	add(extension, "GET", repo+"/usage", repoUsage)
	add(extension, "GET", repo+"/events", streamEvents)
	add(extension, "GET", ns+"/usage", namespaceUsage)
	add(extension, "GET", ns+"/events", streamEvents)
	add(extension, "POST", ns+"/tokens/{id}/rotate", rotateToken)
	add(extension, "GET", "/events", streamEvents)
	add(extension, "GET", "/audit", exportAudit)
	for _, under := range []string{"", ns} { // webhooks of the account, and webhooks of a namespace
		add(extension, "GET", under+"/webhooks", listWebhooks)
		add(extension, "POST", under+"/webhooks", createWebhook)
		add(extension, "DELETE", under+"/webhooks/{id}", deleteWebhook)
		add(extension, "GET", under+"/webhooks/{id}/dead", deadDeliveries)
		add(extension, "POST", under+"/webhooks/{id}/dead/{seq}/retry", retryDelivery)
	}
	shared := func(method, pattern string, handle func(*call) error) {
		add(extension, method, repo+pattern, handle)
		table[len(table)-1].repo = true
	}
	const one = "/sessions/{session}"
	shared("GET", "/compare", compareProposals)
	shared("GET", "/sessions", listSessions)
	shared("GET", one, getSession)
	shared("PATCH", one, changeSession)
	shared("DELETE", one, deleteSession)
	shared("GET", one+"/checkpoints", listCheckpoints)
	shared("PUT", one+"/pins/{pin}", setPin)
	shared("DELETE", one+"/pins/{pin}", removePin)
	shared("GET", one+"/annotations", listAnnotations)
	shared("POST", one+"/annotations", annotateSession)
	shared("GET", one+"/approvals", listApprovals)
	shared("POST", one+"/approvals", requestApproval)
	shared("POST", one+"/approvals/{request}/grant", answerRequest(approval.Grant))
	shared("POST", one+"/approvals/{request}/deny", answerRequest(approval.Deny))
	shared("POST", one+"/approvals/{request}/withdraw", answerRequest(approval.Withdraw))
	shared("POST", one+"/merge", mergeSession)
	shared("GET", "/policy", getPolicy)
	shared("PUT", "/policy", setPolicy)
	shared("GET", "/cache", listEntries)
	shared("GET", "/cache/entry", getEntry)
	shared("DELETE", "/cache/entry", deleteEntry)
	shared("GET", "/cache/value", getValue)
	shared("PUT", "/cache/value", putValue)
	add(extension, "GET", "/tokens", listControlTokens)
	add(extension, "POST", "/tokens", createControlToken)
	add(extension, "DELETE", "/tokens/{id}", revokeControlToken)
	add(extension, "POST", "/tokens/{id}/rotate", rotateControlToken)
	return table
}

// match returns the route of a request, its parameters, and the account in the path, which is "" for routes without an
// account. It returns nil if there is no such route.
func (a *API) match(r *http.Request) (found *route, params map[string]string, id string) {
	t, id, parts, ok := split(r.URL.EscapedPath())
	if !ok {
		return nil, nil, ""
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // a HEAD request is handled as GET, and net/http drops the body
	}
	for _, route := range a.routes {
		if route.tree == t && route.method == method {
			if params, ok := route.params(parts); ok {
				return route, params, id
			}
		}
	}
	return nil, nil, ""
}

// split divides an escaped path into its prefix, the id of the account, and the decoded components after them. ok is
// false if the path is not below one of the prefixes.
func split(path string) (t tree, id string, parts []string, ok bool) {
	for component := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		part, err := url.PathUnescape(component)
		if err != nil || part == "" || strings.Contains(part, "\x00") {
			return 0, "", nil, false
		}
		parts = append(parts, part)
	}
	under := func(prefix ...string) bool {
		if len(parts) <= len(prefix) {
			return false
		}
		for i, p := range prefix {
			if p != "*" && p != parts[i] {
				return false
			}
		}
		return true
	}
	switch {
	case under("client", "v4", "accounts", "*", "artifacts"):
		return artifacts, parts[3], parts[5:], true
	case under("client", "v4"):
		return account, "", parts[2:], true
	case under("v1", "api"):
		return artifacts, "", parts[2:], true
	case under("artifactfs", "v1", "accounts", "*"):
		return extension, parts[3], parts[4:], true
	}
	return 0, "", nil, false
}

// params returns the parameters of the route if the components match it. A component with an encoded slash can only
// match a parameter; validNames checks names.
func (r *route) params(parts []string) (map[string]string, bool) {
	params := map[string]string{}
	for i, p := range r.pattern {
		if i >= len(parts) {
			return nil, false
		}
		name, ok := strings.CutPrefix(p, "{")
		name = strings.TrimSuffix(name, "}")
		switch rest, all := strings.CutSuffix(name, "..."); {
		case ok && all:
			params[rest] = strings.Join(parts[i:], "/")
			return params, true
		case ok:
			params[name] = parts[i]
		case p != parts[i]:
			return nil, false
		}
	}
	return params, len(parts) == len(r.pattern)
}
