package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/webhooks"
)

const (
	minSecret = 16
	deadLimit = 100
	deadMax   = 1000
	// maxWebhooks is the maximum number of webhooks of a namespace, and also of the account. It is limited because each
	// event creates a record for each webhook.
	maxWebhooks = 100
)

// webhookInfo describes a webhook in answers. The secret is sent only once, when the webhook is created.
type webhookInfo struct {
	ID        string   `json:"id"`
	Namespace *string  `json:"namespace"`
	Repo      *string  `json:"repo"`
	Types     []string `json:"types"`
	URL       string   `json:"url"`
	CreatedAt string   `json:"created_at"`
	Secret    string   `json:"secret,omitempty"`
}

func infoOfWebhook(h records.Webhook) webhookInfo {
	return webhookInfo{ID: h.ID, Namespace: optional(h.Namespace), Repo: optional(h.Repo),
		Types: append([]string{}, h.Types...), URL: h.URL,
		CreatedAt: timeText(h.Created)}
}

func listWebhooks(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	list, err := c.a.o.Records.Webhooks.List(ctx, c.params["namespace"])
	if err != nil {
		return err
	}
	result := make([]webhookInfo, len(list))
	for i, h := range list {
		result[i] = infoOfWebhook(h)
	}
	return c.send(http.StatusOK, result, pages(1, max(len(list), 1), len(list), len(list)))
}

// createWebhook creates a webhook for the events of the account, a namespace, or a repository.
func createWebhook(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	h := records.Webhook{ID: records.NewID(), URL: in.required("url"), Types: in.texts("types"), Secret: in.text("secret"),
		Namespace: in.text("namespace"), Repo: in.text("repo"), Created: c.a.o.Now()}
	if ns := c.params["namespace"]; ns != "" {
		if h.Namespace != "" && !strings.EqualFold(h.Namespace, ns) {
			in.refuse(invalid("namespace", "Must be the namespace of the path"))
		}
		h.Namespace = ns
	}
	in.refuse(validHook(h))
	if err := in.err(); err != nil {
		return err
	}
	if h.Secret == "" {
		h.Secret = webhooks.NewSecret()
	}
	ctx, cancel := c.context()
	defer cancel()
	if h.Namespace != "" {
		n, err := c.a.o.Records.Namespaces.Get(ctx, h.Namespace)
		if err != nil {
			return found("Namespace", err)
		}
		h.Namespace = n.Name
	}
	if err := roomForWebhook(ctx, c.a.o.Records.Webhooks, h.Namespace); err != nil {
		return err
	}
	if err := c.a.o.Records.Webhooks.Create(ctx, h, c.cause()); err != nil {
		return err
	}
	info := infoOfWebhook(h)
	info.Secret = h.Secret
	return c.send(http.StatusCreated, info, nil)
}

// roomForWebhook returns a fault if a namespace, or the account if namespace is "", already has the maximum number of
// webhooks.
func roomForWebhook(ctx context.Context, all *records.Webhooks, namespace string) error {
	list, err := all.List(ctx, namespace)
	if err != nil {
		return err
	}
	if namespace == "" { // the list contains the webhooks of all namespaces, so count those of the account
		list = slices.DeleteFunc(list, func(h records.Webhook) bool { return h.Namespace != "" })
	}
	if len(list) >= maxWebhooks {
		return exists("There are %d webhooks already, which is the maximum", len(list))
	}
	return nil
}

func validHook(h records.Webhook) *Fault {
	u, err := url.Parse(h.URL)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return invalid("url", "Must be an HTTP or HTTPS URL")
	case u.User != nil:
		return invalid("url", "Must not contain credentials")
	case h.Secret != "" && len(h.Secret) < minSecret:
		return invalid("secret", "Too small: expected string to have >=%d characters", minSecret)
	case !validSecret(h.Secret):
		return invalid("secret", "Must be BASE64 after whsec_")
	case h.Repo != "" && h.Namespace == "":
		return invalid("namespace", "Invalid input: expected string, received undefined")
	case h.Namespace != "" && validNamespace(h.Namespace) != nil:
		return validNamespace(h.Namespace)
	case h.Repo != "" && validRepo(h.Repo) != nil:
		return invalid("repo", "Invalid repo name")
	}
	for _, t := range h.Types {
		if !slices.Contains(events.Types, t) {
			return among("types", t, events.Types)
		}
	}
	return nil
}

func validSecret(text string) bool {
	_, err := webhooks.Key(text)
	return err == nil
}

// webhook returns the webhook in the path.
func (c *call) webhook(ctx context.Context) (records.Webhook, error) {
	list, err := c.a.o.Records.Webhooks.List(ctx, c.params["namespace"])
	if err != nil {
		return records.Webhook{}, err
	}
	i := slices.IndexFunc(list, func(h records.Webhook) bool { return h.ID == c.params["id"] })
	if i < 0 {
		return records.Webhook{}, missing("Webhook")
	}
	return list[i], nil
}

func deleteWebhook(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	h, err := c.webhook(ctx)
	if err != nil {
		return err
	}
	if err := c.a.o.Records.Webhooks.Delete(ctx, h.ID, c.cause()); err != nil {
		return found("Webhook", err)
	}
	return c.send(http.StatusOK, struct {
		ID string `json:"id"`
	}{h.ID}, nil)
}

// deliveryInfo is a delivery that was given up.
type deliveryInfo struct {
	Seq      int64           `json:"seq"`
	Type     string          `json:"type"`
	Attempts int             `json:"attempts"`
	Error    string          `json:"error"`
	Event    json.RawMessage `json:"event"`
}

func deadDeliveries(c *call) error {
	q := c.query()
	limit := q.number("limit", deadLimit, 1, deadMax)
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	h, err := c.webhook(ctx)
	if err != nil {
		return err
	}
	list, err := c.a.o.Records.Webhooks.Dead(ctx, h.ID, limit)
	if err != nil {
		return err
	}
	result := make([]deliveryInfo, len(list))
	for i, d := range list {
		result[i] = deliveryInfo{d.Event.Seq, d.Event.Type, d.Attempts, d.Error, d.Event.Body}
	}
	return c.send(http.StatusOK, result, pages(1, limit, len(list), len(list)))
}

// retryDelivery makes the server attempt a delivery again that it has given up.
func retryDelivery(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	h, err := c.webhook(ctx)
	if err != nil {
		return err
	}
	seq, fault := seqOf(c.params["seq"])
	if fault != nil {
		return fault
	}
	if err := c.a.o.Records.Webhooks.Retry(ctx, h.ID, seq, c.cause()); err != nil {
		return found("Delivery", err)
	}
	return c.send(http.StatusAccepted, struct {
		ID string `json:"id"`
	}{h.ID + "/" + strings.TrimSpace(c.params["seq"])}, nil)
}
