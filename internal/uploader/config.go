package uploader

// Names of the variables that the operator sets on the uploader's container. The credentials of the storage are
// beside them, as the provider's own tools read them.
const (
	EnvNamespace = "CONCERTINA_NAMESPACE"
	EnvJob       = "CONCERTINA_JOB"
	EnvJobUID    = "CONCERTINA_JOB_UID"
	EnvAttempt   = "CONCERTINA_ATTEMPT"
	EnvMemory    = "CONCERTINA_MEMORY"
	EnvStorage   = "CONCERTINA_STORAGE"
	EnvSocket    = "CONCERTINA_UPLOADER_SOCKET"
)
