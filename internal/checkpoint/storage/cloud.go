package storage

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://
	_ "gocloud.dev/blob/s3blob"    // s3://
	"gocloud.dev/gcerrors"
)

// cloud is a bucket of S3, Google's storage or Azure's.
type cloud struct{ bucket *blob.Bucket }

// openCloud opens a bucket. What follows its name in the URL's path is the prefix of all keys. Credentials come from
// the environment, as the provider's own tools read them.
func openCloud(ctx context.Context, address *url.URL) (bucket, error) {
	prefix := strings.Trim(address.Path, "/")
	plain := *address
	plain.Path = ""
	opened, err := blob.OpenBucket(ctx, plain.String())
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", ErrRefused, plain.Redacted(), err)
	}
	if prefix != "" {
		opened = blob.PrefixedBucket(opened, prefix+"/")
	}
	return cloud{opened}, nil
}

func (c cloud) create(ctx context.Context, key string, data []byte) error {
	// A buffer that is larger than the object makes one request of it: several would leave some behind when this
	// process ends between them, and nobody sees those.
	// Not WriteAll: the writer for Azure that it makes takes an error for a reason to panic.
	err := c.bucket.Upload(ctx, key, bytes.NewReader(data), &blob.WriterOptions{
		IfNotExist: true, BufferSize: pieceBytes + 1<<20, MaxConcurrency: 1,
		ContentType: "application/octet-stream", DisableContentTypeDetection: true,
	})
	return c.named(err)
}

func (c cloud) open(ctx context.Context, key string) (io.ReadCloser, error) {
	reader, err := c.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, c.named(err)
	}
	return &body{reader}, nil
}

// body is what an object is read from.
type body struct{ io.ReadCloser }

// mismatches are the words of the providers' libraries for bytes that are not those of the checksum kept with an object:
// they have no type for it that others can name.
var mismatches = []string{"checksum did not match", "bad CRC"}

// Read says ErrDamaged of bytes that are not those that were written.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && slices.ContainsFunc(mismatches, func(words string) bool { return strings.Contains(err.Error(), words) }) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return n, err
}

func (c cloud) list(ctx context.Context, prefix string, yield func(object) error) error {
	listing := c.bucket.List(&blob.ListOptions{Prefix: prefix})
	for {
		found, err := listing.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.named(err)
		}
		if found.IsDir {
			continue
		}
		if err := yield(object{found.Key, found.Size, found.ModTime}); err != nil {
			return err
		}
	}
}

func (c cloud) remove(ctx context.Context, key string) error {
	if err := c.named(c.bucket.Delete(ctx, key)); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

func (c cloud) close() error { return c.bucket.Close() }

// named marks errors by what they mean here.
func (c cloud) named(err error) error {
	if err == nil {
		return nil
	}
	err = withoutQueries(err)
	var api smithy.APIError
	var answer *awshttp.ResponseError
	switch code := gcerrors.Code(err); {
	case code == gcerrors.FailedPrecondition || code == gcerrors.AlreadyExists:
		return fmt.Errorf("%w: %w", ErrExists, err)
	case isUntrusted(err):
		return fmt.Errorf("%w: the storage shows a certificate that is not trusted (SSL_CERT_FILE in its Secret names a file of "+
			"others that are): %w", ErrRefused, err)
	case strings.Contains(err.Error(), "endpoint rule error"): // the rules of S3's addresses have no type for it
		return fmt.Errorf("%w: it has no address; a region may be missing (AWS_REGION in its Secret, or region= in its URL): %w", ErrRefused, err)
	case errors.As(err, &api) && api.ErrorCode() == "NoSuchBucket":
		return fmt.Errorf("%w: there is no such bucket: %w", ErrRefused, err)
	case code == gcerrors.NotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case code == gcerrors.PermissionDenied || code == gcerrors.InvalidArgument || code == gcerrors.Unimplemented,
		errors.As(err, &answer) && refuses(answer.HTTPStatusCode()):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	default:
		return err
	}
}

// addressed is a URL in the text of an error, with its query.
var addressed = regexp.MustCompile(`(\w+://[^\s?"]+)\?[^\s"]*`)

// withoutQueries is an error whose text shows no query of a URL: that is where signatures and tokens stand.
func withoutQueries(err error) error {
	text := err.Error()
	if clean := addressed.ReplaceAllString(text, "$1"); clean != text {
		return &cleaned{clean, err}
	}
	return err
}

// cleaned is an error with another text.
type cleaned struct {
	text  string
	cause error
}

func (c *cleaned) Error() string { return c.text }
func (c *cleaned) Unwrap() error { return c.cause }

// isUntrusted says whether the other end is not who it should be.
func isUntrusted(err error) bool { return errors.As(err, new(*tls.CertificateVerificationError)) }

// refuses says whether an answer stays the same when asked again.
func refuses(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return status >= 400 && status < 500
	}
}
